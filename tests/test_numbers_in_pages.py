"""Numbers in README, docs and results are what the logs in `results/` have; the tools that see to it."""

import gzip
import runpy
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
LARGEST = 4_000_000


@pytest.fixture(scope="module")
def numbers():
    return runpy.run_path(str(ROOT / "tools" / "fill_numbers.py"))


def test_the_pages_have_the_numbers_of_the_logs(numbers):
    """Where this fails, `python tools/fill_numbers.py` writes them."""
    found = {str(page.relative_to(ROOT)): list(numbers["stale"](page)) for page in numbers["pages"]()}
    assert {page: places for page, places in found.items() if places} == {}
    assert sum(page.read_text().count("<!-- numbers:") for page in numbers["pages"]()) > 20


def test_the_picture_of_the_readme_shows_the_logs():
    """Where this fails, `python tools/draw_front.py` draws it."""
    tool = runpy.run_path(str(ROOT / "tools" / "draw_front.py"))
    shown = tool["lines"](tool["read"](tool["FOLDER"]), tool["METHODS"])
    assert tool["digest"](shown).encode() in tool["OUT"].read_bytes()


PLACE = "<!-- numbers: figure3-medium by-the-clock at=60 to=1 -->\n{}\n<!-- end -->\n"


def test_a_number_changed_by_hand_is_found(numbers, tmp_path):
    good = numbers["filled"]("Text.\n\n" + PLACE.format(""))
    assert good.startswith("Text.\n\n<!-- numbers:")
    page = tmp_path / "page.md"
    page.write_text(good)
    assert list(numbers["stale"](page)) == []
    row = next(line for line in good.splitlines() if line.startswith("| Adam"))
    page.write_text(good.replace(row, row.replace("2.24", "2.14")))
    assert row != row.replace("2.24", "2.14")
    assert list(numbers["stale"](page)) == ["figure3-medium by-the-clock at=60 to=1"]


def test_what_was_not_measured_is_not_printed(numbers):
    """SGD was looked at after step 0 and after step 60: what it had after 18 is not known."""
    table = numbers["head_to_head"]("figure3-medium", steps="18")
    row = next(line for line in table.splitlines() if line.startswith("| SGD "))
    assert row.endswith("| not measured |")


def keys(table):
    """Return the letters of the claims that a table has rows of."""
    return "".join(line[2] for line in table.splitlines() if line[3:5] == ". ")


def test_claims_that_were_not_run_are_named_in_a_line(numbers):
    table, line = numbers["decided"]("figure3-batch-mode").split("\n\n")
    assert keys(table) == "bcefj"
    assert "**in part**" in table
    assert "no runs of ngd or ngd-diag" in table
    assert table.splitlines()[0] == "| claim | verdict | found |"
    assert line == "Not run: a, d, g, h and i."


def test_of_several_results_a_claim_is_shown_that_one_of_them_decides(numbers):
    table, line = numbers["decided"]("figure3-500-images", others="figure3-batch-mode").split("\n\n")
    assert keys(table) == "bcdfij"
    assert table.splitlines()[0] == "| claim | figure3-500-images | figure3-batch-mode |"
    assert table.splitlines()[4].endswith("| **holds** | – |")
    assert line == "Not run: a, e, g and h."
    assert "\n\n" not in numbers["decided"]("figure2")


def test_the_cost_counts_every_training_of_the_logs(numbers):
    *_, row = numbers["cost"]("figure3-medium", others="figure3-batch-mode").splitlines()
    assert row == "| [figure3-batch-mode](../results/figure3-batch-mode/README.md) | 5 | 40 | 51 |"


def test_the_overview_has_verdicts_command_and_minutes_of_every_run(numbers):
    head, _, *rows = numbers["overview"](
        "figure2", others="figure3-500-images,figure3-batch-mode"
    ).splitlines()
    assert head == "| figure | the paper’s claim | our verdict | command | minutes |"
    assert "a, c and d: **holds**; b: **does not hold**; e: **not decided**" in rows[0]
    assert "| `natgrad run curves --seeds 5` | 9 |" in rows[1]
    assert rows[2].split(" | ")[1] == "as above"
    assert "--methods ngd-l,ncg-l,ncg-f,ncg-l-cobyla,ncg-f-diag,ksd,ksd-without,hf` | 51 |" in rows[2]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<!-- numbers: figure3-medium by-the-clock at=60 to=1 -->\n| a |\n", "does not end"),
        (PLACE.format("").replace("by-the-clock", "by-the-cloc"), "by-the-cloc"),
        (PLACE.format("").replace("at=60", "when=60"), "when"),
    ],
)
def test_a_place_that_is_not_one_is_refused(numbers, text, error):
    with pytest.raises((ValueError, KeyError, TypeError), match=error):
        numbers["filled"](text)


def folders():
    return sorted(path for path in RESULTS.iterdir() if path.is_dir())


def test_results_are_small_and_hold_nothing_that_follows_from_the_logs():
    listed = subprocess.run(
        ["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no repository: what is committed is not known")
    files = [ROOT / line for line in listed.stdout.splitlines()]
    assert sum(path.stat().st_size for path in files) <= LARGEST
    assert {path.suffix for path in files} <= {".xz", ".json", ".png", ".md", ".csv", ".txt"}
    for folder in folders():
        assert {"README.md", "figure.png"} <= {path.name for path in folder.iterdir()}
        assert f"]({folder.name})" in (RESULTS / "README.md").read_text()


@pytest.mark.parametrize(
    "folder", [path for path in folders() if path.name != "race"], ids=lambda path: path.name
)
def test_an_archive_holds_logs_and_nothing_else(folder):
    assert (folder / "run.json").is_file()
    with tarfile.open(folder / "logs.tar.xz") as archive:
        members = archive.getmembers()
        assert members
        for member in members:
            assert member.isfile()
            assert member.name.endswith(".jsonl")
            assert "/" not in member.name
            assert archive.extractfile(member).readline().startswith(b'{"record": "header", "format": ')


def test_a_run_is_kept_byte_for_byte(tmp_path):
    tool = runpy.run_path(str(ROOT / "tools" / "keep_run.py"))
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    contents = {"sgd.0.jsonl": b'{"record": "header"}\n\xc3\xa4', "ngd.1.jsonl": b"1\n2\n" * 1000}
    (run / "logs" / "sgd.0.jsonl").write_bytes(contents["sgd.0.jsonl"])
    (run / "logs" / "ngd.1.jsonl.gz").write_bytes(gzip.compress(contents["ngd.1.jsonl"]))
    (run / "run.json").write_text('{"data": "/of/mine/mnist"}')
    for target in ("one", "other"):
        tool["keep"](run, tmp_path / target)
    assert (tmp_path / "one" / "run.json").read_text() == '{"data": "mnist"}'
    with tarfile.open(tmp_path / "one" / "logs.tar.xz") as archive:
        assert {member.name: archive.extractfile(member).read() for member in archive} == contents
    assert (tmp_path / "one" / "logs.tar.xz").read_bytes() == (
        tmp_path / "other" / "logs.tar.xz"
    ).read_bytes()
