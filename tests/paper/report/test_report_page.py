"""The page of a run: complete, closed in itself, the same for the same logs, and proof against what logs say."""

import csv
import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest
import synthetic
from synthetic import run_log
from typer.testing import CliRunner

from natgrad_paper import cli, drawing, log, markup, page, samples, settings
from natgrad_paper.errors import UserError

VOID = {"meta", "img", "br", "hr", "link", "input"}
SECTIONS = ("figure", "results", "claims", "diagnostics", "samples", "time", "settings")
CONFIG = {
    "ksd": {"size": 20},
    "damping": {"reduction": "linear"},
    "budget": {"seconds": 45.0, "iterations": None},
}


def several(**rest):
    """Return three seeds of every method the claims ask for, as they would have it."""
    scales = {"sgd": 9.0, "ngd": 3.0, "ngd-same": 4.0, "ngd-l": 2.0, "ncg-l": 1.0, "own": 2.5}
    return [
        run_log(
            name, seed, scale * 1.02**seed, order=order, config=CONFIG, steps=synthetic.steps(),
            samples=synthetic.samples(value=20 * order), **rest,
        )
        for order, (name, scale) in enumerate(scales.items())
        for seed in range(3)
    ]  # fmt: skip


class Page(HTMLParser):
    """Reads a page: every element in order, all text, and whether every element is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.open = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def written(logs, directory):
    page.write(page.gather(logs), directory)
    return (directory / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = synthetic.write(several(), tmp_path_factory.mktemp("run"))
    return directory, written(log.read_all(directory), directory)


def test_page_has_everything_in_order(whole):
    found = Page(whole[1])
    ids = [attributes["id"] for _, attributes in found.elements if attributes.get("id") in SECTIONS]
    assert tuple(ids) == SECTIONS
    for words in (
        "Figure 3: the Curves benchmark",
        "Curves (regenerated)",
        "a" * 64,
        "small",
        "seeds 0, 1, 2",
        "2 cores, Linux",
        "natgrad 0, jax 1",
        "The paper’s methods",
        "Controls",
        "Further methods",
        "error at 4 s",
        "error at 100 iterations",
        "seconds to 5",
        "NCG-L / NGD-L at 100 iterations: 0.5 (0.5 to 0.5, 3 seeds)",
        "no runs of ncg-f",
        "Student’s 95% interval",
        "Every one of the 18 runs used its budget",
        "ksd.size",
        "natgrad run curves --preset small --methods sgd,ngd,ngd-same,ngd-l,ncg-l,own --seeds 0,1,2",
    ):
        assert words in found.text, words
    assert [
        found.text.count(f"{mark} {verdict}") for mark, verdict in (("✓", "holds"), ("–", "not run"))
    ] == [2, 6]


def test_page_is_accessible(whole):
    found = Page(whole[1])
    assert found.all("html")[0]["lang"] == "en"
    assert all(image["alt"] for image in found.all("img"))
    assert len(found.all("img")) == 7  # the originals and six methods
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in found.all("svg"))
    assert all(cell.get("scope") for cell in found.all("th"))
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in found.elements:  # references stay within the page, and lead somewhere
        for target in re.findall(
            r"(?:url\()?#([\w-]+)\)?", attributes.get("href", "") + attributes.get("clip-path", "")
        ):
            assert target in ids


def test_page_needs_nothing_else(whole):
    found = Page(whole[1])
    assert not {"script", "link", "iframe", "object", "embed"} & {name for name, _ in found.elements}
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", whole[1])
    assert "http" not in re.sub(r"http-equiv", "", whole[1])
    assert "@import" not in whole[1]
    assert set(re.findall(r"url\((.)", whole[1])) <= {"#"}


def test_colors_of_the_page_are_defined_on_light_and_dark_ground(whole):
    used = set(re.findall(r"var\((--\w+)\)", whole[1]))
    for name in used:
        assert len(re.findall(rf"{name}:", whole[1])) >= (2 if name.startswith("--c") else 1), name
    assert drawing.on_dark("#000000") > "#e0"
    assert drawing.on_dark("#ffffff") < "#30"


def test_report_is_a_pure_function_of_the_logs(whole, tmp_path):
    directory, _ = whole
    names = ("report.html", "results.csv", "claims.csv", "curves.svg", "curves.png")
    first = {name: (directory / name).read_bytes() for name in names}
    again = synthetic.write(several(), tmp_path / "elsewhere")
    result = CliRunner().invoke(cli.app, ["report", str(again)])
    assert result.exit_code == 0, result.output
    for name in names:
        assert (again / name).read_bytes() == first[name], name
    assert "not run" in result.output
    assert "report.html" in result.output.replace("\n", "")


def test_a_void_finding_says_so_and_why_on_page_screen_and_in_the_table(tmp_path):
    logs = several()
    dead = "50 steps in a row refused: no decrease"
    for found in logs:
        if found.header["method"]["name"] == "ncg-l" and found.header["seed"] == 1:
            logs[logs.index(found)] = dataclasses.replace(found, end=dead)
    result = CliRunner().invoke(cli.app, ["report", str(synthetic.write(logs, tmp_path))])
    assert result.exit_code == 0, result.output
    cause = f"void: NCG-L, seed 1: {dead}"
    found = Page((tmp_path / "report.html").read_text())
    assert cause in found.text
    assert "∅ void" in found.text
    assert "void, " in found.text
    assert "how it ended" in found.text  # in the table of troubles
    assert cause in re.sub(r"\s+", " ", result.output)
    rows = list(csv.DictReader((tmp_path / "claims.csv").read_text().splitlines()))
    assert {row["verdict"] for row in rows if row["claim"] == "b"} == {"void"}
    assert all(cause in row["measured"] for row in rows if row["claim"] == "b")


def test_what_was_not_measured_has_no_number_in_the_table(tmp_path):
    logs = several()
    for found in logs:
        if found.header["method"]["name"] == "own":  # three steps in the same time
            for record, iteration in zip(found.evaluations, (0, 1, 3), strict=True):
                record["iteration"] = iteration
    found = Page(page.html(page.gather(logs)))
    assert "error at 3 iterations" in found.text
    assert found.text.count("not measured") >= 5


def test_csv_is_tidy(whole):
    rows = list(csv.DictReader((whole[0] / "results.csv").read_text().splitlines()))
    assert len(rows) == 18 * 3
    assert list(rows[0])[:6] == [
        "method",
        "seed",
        "iteration",
        "training_seconds",
        "evaluation_seconds",
        "compile_seconds",
    ]
    assert rows[2] == {
        "method": "sgd", "seed": "0", "iteration": "100", "training_seconds": "4.0", "evaluation_seconds": "1.0",
        "compile_seconds": "3.0", "squared_error": "18.0",
    }  # fmt: skip


EVIL = "</style></svg><script>alert(1)</script><img src=x onerror='alert(2)'>\"&"


def test_nothing_in_a_log_becomes_part_of_the_page(tmp_path):
    logs = several(label=EVIL)
    for found in logs:
        header = found.header
        header["preset"] = header["platform"] = header["data"]["name"] = EVIL
        header["versions"] = {EVIL: EVIL}
        header["config"] = {"ksd": {"size": 20}, EVIL: {EVIL: EVIL}}
        header["method"]["color"] = "red;}body{background:url(http://evil.example)"
    logs.append(run_log("x", 7, end=EVIL, order=9))
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
    assert "not decided" in found.text
    assert "The logs hold no samples." in found.text
    assert ("used its budget" in found.text) == all(each.end == "finished" for each in logs)


def test_other_experiments_have_a_page_too(tmp_path):
    logs = [run_log()]
    logs[0].header["experiment"] = "unheard-of"
    found = Page(written(logs, tmp_path))
    assert "verdict" not in found.text
    assert (tmp_path / "unheard-of.svg").exists()


def test_a_cut_log_is_reported(tmp_path):
    synthetic.write([run_log(seed=seed) for seed in range(3)], tmp_path)
    path = tmp_path / "logs" / "ngd.1.jsonl"
    path.write_text(path.read_text()[:-40])
    result = CliRunner().invoke(cli.app, ["report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "cut off, without a word" in (tmp_path / "report.html").read_text()


def test_steps_samples_and_resuming_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    clocks = {"training_seconds": 0, "evaluation_seconds": 0, "compile_seconds": 0}
    with log.Writer(path, run_log().header) as stream:
        for n in (0, 5, 10):
            stream.write({"record": "evaluation", "iteration": n, **clocks})
            stream.write({"record": "step", "iteration": n})
        stream.write({"record": "samples", "shape": [1]})
        stream.write({"record": "end", "reason": "interrupted"})
    assert log.read(path).end == "interrupted"
    assert log.read(path).samples["shape"] == [1]
    with path.open("a") as stream:
        for record in (
            {"record": "resumed", "iteration": 5},
            {"record": "evaluation", "iteration": 9, **clocks},
        ):
            stream.write(json.dumps(record) + "\n")
    found = log.read(path)
    assert [record["iteration"] for record in found.evaluations] == [0, 5, 9]
    assert [record["iteration"] for record in found.steps] == [0, 5]
    assert found.end is None
    assert found.samples is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [3, 28]}, "shape: expected"),
        ({"shape": [10**9, 28, 28]}, "shape: expected"),
        ({"shape": [True, 28, 28]}, "shape: expected"),
        ({"shape": [2, 28, 28]}, "cases: expected 1568 bytes, found 2352"),
        ({"cases": "?"}, "cases: expected bytes in base64"),
        ({"cases": "é"}, "cases: expected bytes in base64"),
        ({"reconstructions": None}, "reconstructions: expected"),
    ],
)
def test_damaged_samples_are_named(change, words):
    with pytest.raises(UserError, match=re.escape(words)):
        samples.images(run_log(samples=synthetic.samples() | change))


def test_command_says_what_was_changed(whole):
    logs = log.read_all(whole[0])
    experiment = page.gather(logs).experiment
    assert "--set 'damping.initial=" not in settings.command(logs, experiment)
    logs[0].header["config"] = {"damping": {"initial": 9.0}}
    assert "--set damping.initial=9.0" in settings.command(logs[:1], experiment)
    assert "--seeds 0, " in settings.command(logs[:1], experiment) + " "
    assert "damping.initial" not in settings.command(logs, experiment)  # not in all of them
    assert dict(settings.rows(logs[:2]))["damping.initial"] == "9.0 (ncg-l.0); – (ncg-l.1)"


def test_markup_escapes_all_but_markup():
    made = markup.tag("p", "<b>", markup.tag("i", "&"), ["x", None], class_='"', hidden=True, title=None)
    assert made == '<p class="&quot;" hidden>&lt;b&gt;<i>&amp;</i>x</p>'
