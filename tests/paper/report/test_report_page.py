"""The page of a run: complete, closed in itself, the same for the same logs, and proof against what logs say."""

import base64
import csv
import dataclasses
import re

import pytest
import synthetic
from matplotlib.figure import Figure
from pages import SETTINGS, STORY, Page, several, words_of, written
from synthetic import REFUSED, run_log

from natgrad_paper.report import load, page
from natgrad_paper.report.claims import Below, BestBelow, Claim
from natgrad_paper.report.parts import Cell, Part, Picture, Table, Words
from natgrad_paper.report.story import Story
from natgrad_paper.report.views import LINEAR, RECONSTRUCTION, Measure, Panel, View

SECTIONS = (
    "departures", "figure", "results", "claims", "diagnostics", "reconstructions", "time", "troubles", "settings",
    "command",
)  # fmt: skip
FILES = ("report.html", "results.csv", "claims.csv", "curves.svg", "curves.png")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = synthetic.write(several(), tmp_path_factory.mktemp("run"))
    page.write(load.read(directory), STORY, directory)
    return directory, (directory / "report.html").read_text(encoding="utf-8")


def test_page_has_everything_in_order(whole):
    found = Page(whole[1])
    ids = [attributes["id"] for _, attributes in found.elements if attributes.get("id") in SECTIONS]
    assert tuple(ids) == SECTIONS
    for words in (
        "Figure 3: the Curves benchmark",
        "On this evidence 2 of 4 claims hold, 0 do not, 2 were not run, and 0 are not decided.",
        "Curves (regenerated), 4 training and 2 test cases, sha256 " + "a" * 64,
        "18: 6 methods, seeds 0, 1, 2",
        "commit cccccccccccc (clean)",
        "2 cores, Linux",
        "natgrad 0, jax 1",
        "What differs from the paper",
        "The data are drawn again.",
        "ksd.size2080",  # its value here, and the paper’s
        "The paper’s methods",
        "Further methods",
        "squared error at 4 s",
        "squared error at 100 iterations",
        "seconds to 5",
        "NCG-L / NGD-L at 100 iterations: 0.5 (0.5 to 0.5, 3 seeds)",
        "no runs of ncg-f",
        "A sceptic’s question. Test: In time.",
        "4 claims, 7 comparisons. Mean over seeds, and in brackets Student’s 95% interval.",
        "by at least 2%",
        "processor, s",
        "Every one of the 18 runs used its budget",
        "All 3 fields",
        "natgrad run curves --preset small --methods sgd,ngd,ngd-same,ngd-l,ncg-l,own --seeds 0,1,2",
    ):
        assert words in found.text, words
    assert "hf.maxiter" not in found.text  # of a method that did not run
    assert [
        found.text.count(f"{mark} {verdict}") for mark, verdict in (("✓", "holds"), ("–", "not run"))
    ] == [2, 2]


def test_page_is_accessible(whole):
    found = Page(whole[1])
    assert found.all("html")[0]["lang"] == "en"
    assert all(image["alt"] for image in found.all("img"))
    assert (
        len(found.all("img")) == 1 + 3 + 7
    )  # the figure, three groups of methods, the originals and six methods
    assert all(cell.get("scope") for cell in found.all("th"))
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_page_needs_nothing_else(whole):
    found = Page(whole[1])
    assert not {"script", "link", "iframe", "object", "embed", "svg"} & {name for name, _ in found.elements}
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", whole[1])
    assert "http" not in re.sub(r"http-equiv", "", whole[1])
    assert "@import" not in whole[1]
    assert "url(" not in whole[1]
    (policy,) = (each["content"] for each in found.all("meta") if each.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_the_figure_is_drawn_once_for_file_and_page(whole):
    first = Page(whole[1]).all("img")[0]["src"].removeprefix("data:image/svg+xml;base64,")
    assert base64.b64decode(first) == (whole[0] / "curves.svg").read_bytes()


def test_report_is_a_pure_function_of_the_logs(whole, tmp_path):
    again = synthetic.write(several(), tmp_path / "elsewhere")
    paths = page.write(load.read(again), STORY, again)
    assert {path.name for path in paths} == set(FILES)
    assert paths[0].name == "report.html"
    for name in FILES:
        assert (again / name).read_bytes() == (whole[0] / name).read_bytes(), name


def test_a_void_finding_says_so_and_why(tmp_path):
    logs = several(steps=())
    index = next(k for k, log in enumerate(logs) if (log.method, log.seed) == ("ncg-l", 1))
    logs[index] = run_log("ncg-l", 1, end=REFUSED, order=4, settings=SETTINGS)
    found = Page(written(logs, tmp_path))
    assert f"void: NCG-L, seed 1: {REFUSED}" in found.text
    assert "∅ void" in found.text
    assert "2 are void" not in found.text
    assert "how it ended" in found.text  # in the table of troubles
    rows = list(csv.DictReader((tmp_path / "claims.csv").read_text().splitlines()))
    assert {row["verdict"] for row in rows if row["claim"] == "b"} == {"void"}
    assert all(REFUSED in row["measured"] for row in rows if row["claim"] == "b")


def test_what_was_not_measured_has_no_number_in_the_table():
    logs = several(steps=())
    for found in logs:
        if found.method == "own":  # three steps in the same time
            for record, iteration in zip(found.evaluations, (0, 1, 3), strict=True):
                record["iteration"] = iteration
    found = words_of(logs)
    assert "error at 3 iterations" in found
    assert found.count("not measured") >= 5


def test_csv_is_tidy(whole):
    rows = list(csv.DictReader((whole[0] / "results.csv").read_text().splitlines()))
    assert len(rows) == 18 * 3
    assert rows[2] == {
        "method": "sgd", "seed": "0", "iteration": "100", "refused": "0", "training_seconds": "4.0",
        "cpu_seconds": "7.0", "evaluation_seconds": "1.0", "compile_seconds": "3.0", "squared_error": "18.0",
    }  # fmt: skip


EVIL = "</style></svg><script>alert(1)</script><img src=x onerror='alert(2)'>\"&"


def test_nothing_in_a_log_becomes_part_of_the_page(tmp_path):
    logs = several(label=EVIL)[::3]
    for found in logs:
        header = found.header
        header["preset"] = header["platform"] = header["data"]["name"] = EVIL
        header["versions"], header["settings"] = {EVIL: EVIL}, {"ksd": {"size": 20}, EVIL: {EVIL: EVIL}}
        header["method"]["color"] = "red;}body{background:url(http://evil.example)"
        header["commit"] = {"id": EVIL, "clean": False}
        for record in found.pictures:
            record["title"] = EVIL
    logs.append(run_log("x", 7, end=EVIL, order=9))
    logs[-1].header["data"]["name"] = EVIL
    text = written(logs, tmp_path)
    found = Page(text)
    assert "alert(1)" in found.text
    assert "script" not in {name for name, _ in found.elements}
    assert all("onerror" not in attributes for _, attributes in found.elements)
    assert "evil.example" not in text
    assert "<script" not in (tmp_path / "curves.svg").read_text()


@pytest.mark.parametrize(
    "logs",
    [
        [run_log()],
        [run_log(errors=())],
        [run_log(errors=(8.0,), end=None)],
        [run_log(errors=(8.0, None)), run_log("sgd", errors=(None, None), order=0)],
        [run_log(end="interrupted", steps=synthetic.steps(1)), run_log(seed=1)],
        [run_log(steps=({"iteration": 5},)), run_log("own", order=3)],
    ],
    ids=["no steps", "no evaluations", "only the start", "not finite", "cut", "bare steps"],
)
def test_poor_logs_make_a_page(logs, tmp_path):
    found = Page(written(logs, tmp_path))
    assert "not run" in found.text
    assert ("Every one of the" in found.text) == all(each.status == "finished" for each in logs)
    assert "Reconstructions" not in found.text  # of what is not there nothing is said
    assert not re.search(r"\bnan\b|None", found.text)


def sine(data, **rest):
    """Return a page of a run on data without images, of a method without damping."""
    log = run_log("plain", settings={"rate": 0.1}, **rest)
    log.header["data"] = {"name": "Sine", "sha256": "a" * 64, **data}
    return log


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"train": [100, 1]}, "Sine, 100 training cases, sha256 aaaa"),
        ({}, "Sine, sha256 aaaa"),
        ({"glyphs": [62, 32, 32]}, "Sine, 62 glyphs, sha256 aaaa"),
        (
            {"train": [9, 1], "valid": [3, 1], "test": [0, 1]},
            "Sine, 9 training and 3 validation cases, sha256 aaaa",
        ),
    ],
    ids=["training cases only", "none of the usual parts", "a source of a stream", "an empty part"],
)
def test_a_page_says_only_what_its_data_have(data, words, tmp_path):
    text = written([sine(data)], tmp_path, Story("Sine"))
    found = Page(text)
    assert words in found.text
    for absent in (
        "images",
        "samples",
        "λ",
        "Reconstructions",
        "What the data look like",
        "What differs",
        "claims",
    ):
        assert absent not in found.text, absent
    assert "λ" not in (tmp_path / "curves.svg").read_text()
    assert "images" not in (tmp_path / "curves.svg").read_text()
    assert "1: 1 method, seed 0" in found.text
    assert not (tmp_path / "claims.csv").exists()


def test_an_experiment_of_another_kind_tells_its_own_story(tmp_path):
    """Figure 2: no error along time, but a figure and sections of its own, from measures of many trainings."""
    view = View(
        (Panel(Measure("wrong", "error", "error, %", LINEAR, "%", 100.0)),), (), "Variance by segment"
    )
    measure = {"name": "segment-01", "variance": 0.25, "segment": 1}
    logs = [
        run_log(name, 0, errors=(), order=k, measures=(measure,)) for k, name in enumerate(("sgd", "ngd"))
    ]
    logs += [run_log("sgd", 0, training=f"segment-01-{k}", order=0) for k in (1, 2)]
    part = Part(
        "Matching the rates",
        "matching",
        [
            Words("Two rates."),
            Table(
                ["method", "rate"], [["SGD", Cell("0.5", "0.4–0.6", strong=True)]], "As tried.", numbers=True
            ),
            Picture(Figure(figsize=(2, 1)), "A limit.", "one line"),
        ],
    )
    story = Story(
        "Figure 2", view, claims=(Claim("a", "Lower.", "NGD below SGD.", (Below("ngd", "sgd", view.panels),)),),
        figure=lambda runs: Figure(figsize=(3, 2)), caption="Variances.", sections=lambda runs: [part],
        rule=(("A below B", "by the variance"),),
    )  # fmt: skip
    found = Page(written(logs, tmp_path, story))
    for words in (
        "Variance by segment", "Variances.", "Matching the rates", "Two rates.", "As tried.", "0.50.4–0.6", "A limit.",
        "by the variance", "Where the time went", "A claim with several comparisons",
    ):  # fmt: skip
        assert words in found.text, words
    for absent in ("Results", "at equal iterations"):
        assert absent not in found.text, absent
    assert "variance" in (tmp_path / "measures.csv").read_text().splitlines()[0]
    assert "segment-01-2" in (tmp_path / "results.csv").read_text()


def test_the_rule_is_in_the_words_of_what_is_shown():
    cost = Panel(Measure("squared_error", "training cost", "cost"))
    wrong = Panel(Measure("wrong", "test error", "test error, %", LINEAR, "%", 100.0))
    story = dataclasses.replace(STORY, view=View((cost, wrong), (), "Both"))
    found = words_of(several(steps=()), story)
    assert "log(error of A / error of B) or error of A − error of B lies below zero" in found
    assert "at least 2% or 0.5 points" in found
    assert "at equal iterations" in found
    assert "at equal training time" not in found
    assert "more than 10% of the steps" in found


def test_what_was_left_out_is_said():
    logs = several(steps=())
    chosen = [run_log("ngd", seed, order=1, settings={"ngd": {"rate": seed}}) for seed in (100, 101)]
    found = words_of([*logs, *chosen])
    assert "Left outseeds 100, 101: those from 100 on are for choosing settings" in found
    assert "18: 6 methods, seeds 0, 1, 2" in found
    found = words_of(chosen[:1])
    assert "Not judgedseeds from 100 on are for choosing settings" in found
    assert "4 were not run" in found


def test_code_that_differs_or_cannot_be_found_is_said():
    logs = several(steps=())
    logs[0].header["commit"] = {"id": "d" * 40, "clean": False}
    text = words_of(logs)
    assert (
        "commit cccccccccccc (clean); commit dddddddddddd, with changes that are in no commit: runs of different"
        in text
    )
    for log in logs:
        log.header.pop("commit")
    assert "Codethe logs do not say" in words_of(logs)


def test_time_asleep_is_named():
    log = run_log(gaps=({"iteration": 12, "seconds": 3600.2}, {"iteration": 30, "seconds": 61.0}))
    found = words_of([log])
    assert "3600 s at iteration 12; 61 s at iteration 30" in found
    assert "NGD4.07.01.03.0" in found  # training, processor, evaluating, compiling


def test_settings_as_in_the_paper_are_said_to_be():
    story = Story("Figure 3", paper={"ksd": {"size": 20, "part": None}})
    assert "these are the paper’s settings" in words_of([run_log()], story)


def test_old_logs_are_reported(tmp_path):
    """Of format 1: without a commit, without processor time, with all methods' settings."""
    synthetic.write([run_log(seed=seed) for seed in range(3)], tmp_path)
    for path in (tmp_path / "logs").iterdir():
        text = path.read_text().replace('"format": 2', '"format": 1').replace('"settings"', '"config"')
        text = re.sub(
            r'"commit": {[^}]*}, |"cpu_seconds": [0-9.]+, |"training": {[^}]*}, |"status": "finished", ',
            "",
            text,
        )
        path.write_text(text)
    page.write(load.read(tmp_path), STORY, tmp_path)
    found = Page((tmp_path / "report.html").read_text()).text
    assert "processor, s" not in found
    assert "Every one of the 3 runs used its budget" in found


def test_claims_on_kncg_judge_old_logs(tmp_path):
    """Which called it `ncg-kron`, in every evaluation, too."""
    logs = [run_log("ncg-kron", seed, 0.5 + seed / 100, label="NCG-Q, Kronecker") for seed in range(3)]
    synthetic.write(logs + [run_log("adam", seed) for seed in range(3)], tmp_path)
    for path in (tmp_path / "logs").iterdir():
        text = path.read_text().replace('"format": 2', '"format": 1').replace('"settings"', '"config"')
        name = path.name.partition(".")[0]
        path.write_text(text.replace('"record": "evaluation"', f'"record": "evaluation", "method": "{name}"'))
    story = Story("Figure 3", claims=(Claim("h", "", "", (BestBelow(("ngd", "kncg"), "adam"),)),))
    page.write(load.read(tmp_path), story, tmp_path)
    found = (tmp_path / "report.html").read_text()
    assert "KNCG / ADAM at 4 s: 0.5" in found
    assert "ncg-kron" not in found
    assert "Kronecker" not in found


def test_a_cut_log_is_reported(tmp_path):
    synthetic.write([run_log(seed=seed) for seed in range(3)], tmp_path)
    path = tmp_path / "logs" / "ngd.1.jsonl"
    path.write_text(path.read_text()[:-40])
    page.write(load.read(tmp_path), STORY, tmp_path)
    assert "cut off, no reason logged" in (tmp_path / "report.html").read_text()


def test_usual_view_is_that_of_the_autoencoders():
    assert STORY.view is RECONSTRUCTION
