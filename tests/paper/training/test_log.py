"""Logs are lines that are whole or not there; what was cut short is read, what was damaged is refused in one line."""

import gzip
import io
import json
import lzma
import math
import os
import tarfile

import pytest

from natgrad_paper.errors import UserError
from natgrad_paper.training import log
from natgrad_paper.training.log import Mark, Status, Writer
from natgrad_paper.training.stopping import Stopped

HEADER = {
    "experiment": "sums", "preset": "small", "seed": 0, "training": {"name": ""}, "settings": {"sgd": {"rate": 0.1}},
    "method": {"name": "sgd", "label": "SGD", "color": "#000000", "order": 0}, "versions": {}, "cores": 2,
    "platform": "Linux", "data": {"name": "sums", "sha256": "a" * 64},
}  # fmt: skip
TIMES = {"training_seconds": 1.0, "evaluation_seconds": 0.1, "compile_seconds": 2.0}
RECORDS = (
    {"record": "step", "iteration": 1, "loss": 3.0},
    {"record": "gap", "iteration": 1, "seconds": 70.0},
    {"record": "evaluation", "iteration": 1, **TIMES, "squared_error": 0.1},
    {"record": "measure", "name": "segment-01", "variance": 3.0},
    {
        "record": "pictures",
        "what": "data",
        "title": "some",
        "labels": [],
        "shape": [1, 1, 1, 1],
        "images": "AA==",
    },
    {"record": "end", "status": "finished", "reason": "used its budget"},
)


def write(path, records=RECORDS, **changes):
    with Writer(path, {**HEADER, **changes}) as stream:
        for record in records:
            stream.write(record)
    return path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "logs" / "sgd.0.jsonl")


def test_what_is_written_is_read(path):
    found = log.read(path)
    assert (found.method, found.seed, found.training) == ("sgd", 0, "")
    assert (found.header["format"], found.status, found.reason) == (2, Status.FINISHED, "used its budget")
    for kind, records in (
        ("step", found.steps), ("gap", found.gaps), ("evaluation", found.evaluations), ("measure", found.measures),
        ("pictures", found.pictures),
    ):  # fmt: skip
        assert records == tuple(record for record in RECORDS if record["record"] == kind)


@pytest.mark.parametrize(
    ("status", "done", "gave_up", "complete"),
    [
        ("finished", True, False, True),
        ("early", True, True, True),
        ("gave-up", False, True, True),
        ("interrupted", False, False, False),
        ("failed", False, False, False),
        (None, False, False, False),
    ],
)
def test_how_it_ended_is_a_field(tmp_path, status, done, gave_up, complete):
    end = (
        []
        if status is None
        else [{"record": "end", "status": status, "reason": "nonfinite, finished, early"}]
    )
    found = log.read(write(tmp_path / "a.jsonl", [RECORDS[2], *end]))
    assert (found.done, found.gave_up, found.complete) == (done, gave_up, complete)
    assert found.status == status


def test_what_was_never_evaluated_is_not_complete(tmp_path):
    assert not log.read(write(tmp_path / "a.jsonl", [RECORDS[-1]])).complete


def test_a_log_cut_short_anywhere_is_read_and_a_damaged_one_refused(path, tmp_path):
    whole = path.read_bytes()
    first = whole.index(b"\n")
    cut = tmp_path / "cut.jsonl"
    for length in range(first, len(whole)):
        cut.write_bytes(whole[:length])
        found = log.read(cut)
        assert found.header == log.read(path).header
        assert (found.status is None) == (length < len(whole) - 1)
    lines = whole.decode().splitlines()
    for damaged, words in (
        ("", "line 1: expected a header record"),
        ("\n".join(lines[1:]), "line 1: expected a header record"),
        (lines[0][:50], "line 1: expected a header record"),
        ("\n".join([lines[0], "{", *lines[2:]]), "line 2: expected a JSON record"),
        ("\n".join([lines[0], "3", *lines[2:]]), "line 2: expected a JSON record"),
        ("\n".join([lines[0], "[" * 9999, *lines[2:]]), "line 2: expected a JSON record"),
        (lines[0].replace('"seed": 0', '"seed": "0"'), "line 1: seed: expected a whole number, found 0"),
        (lines[0].replace('"label"', '"lable"'), "line 1: method.label: expected a text, found None"),
        (lines[0].replace('"name": ""', '"n": ""'), "line 1: training.name: expected a text, found None"),
        (lines[0] + '\n{"record": "step"}', "line 2: iteration: expected a whole number, found None"),
        (
            lines[0] + '\n{"record": "end", "status": "fine", "reason": ""}',
            "status: expected finished or early",
        ),
        (
            lines[0] + '\n{"record": "end", "status": 3, "reason": ""}',
            "line 2: status: expected a text, found 3",
        ),
        (json.dumps({"record": "header", "format": 99}), "format: expected 2, found 99"),
    ):
        cut.write_text(damaged)
        with pytest.raises(UserError, match=words) as caught:
            log.read(cut)
        assert str(caught.value).startswith(f"{cut}: ")
        assert "\n" not in str(caught.value)


def test_numbers_that_json_lacks_are_null_and_the_others_to_nine_digits(tmp_path):
    record = {"record": "measure", "name": "x", "a": math.nan, "b": [math.inf, 1 / 3], "c": {"d": -math.inf}}
    found = log.read(write(tmp_path / "a.jsonl", [record])).measures[0]
    assert (found["a"], found["b"], found["c"]) == (None, [None, 0.333333333], {"d": None})


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (KeyboardInterrupt, "interrupted"),
        (Stopped, "interrupted"),
        (RuntimeError, "failed"),
        (OSError, "failed"),
    ],
)
def test_what_stops_a_log_is_its_end(tmp_path, problem, status):
    path = tmp_path / "a.jsonl"
    with pytest.raises(problem), Writer(path, HEADER):
        raise problem(15, path) if problem is Stopped else problem
    found = log.read(path)
    assert (found.status, found.reason) == (status, problem.__name__)
    assert not found.done


def test_going_on_keeps_the_bytes_that_are_good_and_no_others(path):
    whole = path.read_bytes()
    keep = whole.index(b"\n", whole.index(b"gap")) + 1
    with Writer(path, {}, keep) as stream:
        mark = stream.mark
        stream.write({"record": "resumed", "iteration": 1})
    assert path.read_bytes()[:keep] == whole[:keep]
    assert mark.size == keep
    assert mark.fits(path)
    assert [line.split(b'"')[3] for line in path.read_bytes().splitlines()] == [
        b"header",
        b"step",
        b"gap",
        b"resumed",
    ]


def test_a_mark_fits_only_what_it_marks(path):
    with Writer(path, {}, path.stat().st_size) as stream:
        mark = stream.mark
        stream.write({"record": "step", "iteration": 2})
    assert mark.fits(path)
    raw = path.read_bytes()
    for place in range(0, mark.size, 7):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        assert not mark.fits(path)
    path.write_bytes(raw[: mark.size - 1])
    assert not mark.fits(path)
    assert not Mark(0, "").fits(path.with_name("absent"))


def test_all_logs_of_a_run_as_files_packed_or_in_one_archive(tmp_path):
    for seed in (1, 0, 10):
        write(tmp_path / "run" / "logs" / f"sgd.{seed}.jsonl", seed=seed)
    wanted = log.read_all(tmp_path / "run")
    assert [found.seed for found in wanted] == [0, 1, 10]
    packed, archive = tmp_path / "packed" / "logs", tmp_path / "archive"
    packed.mkdir(parents=True)
    archive.mkdir()
    for path in (tmp_path / "run" / "logs").iterdir():
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    (packed / "notes.txt").write_text("not a log")
    with tarfile.open(archive / log.PACKED, "w:xz") as stream:
        stream.add(tmp_path / "run" / "logs", "logs")
    assert log.read_all(tmp_path / "packed") == wanted
    assert log.read_all(archive) == wanted
    assert log.read_all(packed) == wanted  # the directory of the logs itself


def archive(path, *members):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:xz") as stream:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                stream.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                stream.addfile(member)
    return path


def test_an_archive_is_read_and_never_unpacked(tmp_path, path, monkeypatch):
    """Names that lead elsewhere lead nowhere, and links are no logs."""
    monkeypatch.chdir(tmp_path)
    good = path.read_bytes()
    hostile = archive(
        tmp_path / "a" / log.PACKED,
        ("../../escape.jsonl", good), ("/absolute.jsonl", good), ("link.jsonl", (tarfile.SYMTYPE, "/etc/passwd")),
        ("hard.jsonl", (tarfile.LNKTYPE, "absent")), ("loop.jsonl", (tarfile.SYMTYPE, "loop.jsonl")),
        ("pipe.jsonl", (tarfile.FIFOTYPE, "")), ("other.txt", b"x"),
    )  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    assert len(log.read_all(hostile.parent)) == 2
    assert sorted(tmp_path.rglob("*")) == before
    assert not (tmp_path.parent / "escape.jsonl").exists()


def test_what_is_no_log_is_one_line(tmp_path, path):
    good = path.read_bytes()
    for name, content in (
        ("absent", None), ("text", b"no archive"), ("empty", b""), ("xz", lzma.compress(b"no tar" * 99)),
        ("cut", archive(tmp_path / "whole" / log.PACKED, ("a.jsonl", good)).read_bytes()[:-40]),
    ):  # fmt: skip
        directory = tmp_path / name
        directory.mkdir()
        if content is not None:
            (directory / log.PACKED).write_bytes(content)
        with pytest.raises(UserError, match="expected") as caught:
            log.read_all(directory)
        assert str(directory) in str(caught.value)
    inner = archive(tmp_path / "inner" / log.PACKED, ("a.jsonl.gz", b"no gzip"))
    with pytest.raises(UserError, match="expected an archive of logs"):
        log.read_all(inner.parent)
    damaged = archive(tmp_path / "damaged" / log.PACKED, ("a.jsonl", b"{\n{}\n"))
    with pytest.raises(UserError, match=r"a\.jsonl: line 1: expected a JSON record"):
        log.read_all(damaged.parent)
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "dir.jsonl").mkdir()
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "bad.jsonl.gz").write_bytes(b"\x1f\x8b no")
    for name in ("pipe.jsonl", "dir.jsonl", "zero.jsonl", "absent.jsonl", "bad.jsonl.gz"):
        with pytest.raises(UserError, match="expected a readable log, found none"):
            log.read(tmp_path / name)


def test_a_log_beyond_all_measure_is_not_read(tmp_path, path, monkeypatch):
    monkeypatch.setattr(log, "LONGEST", 2000)
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    with (tmp_path / "huge.jsonl").open("wb") as stream:
        stream.truncate(10 << 30)  # a hole: no space is taken
    archive(tmp_path / "b" / log.PACKED, ("a.jsonl", bytes(9999)))
    archive(tmp_path / "c" / log.PACKED, ("a.jsonl.gz", gzip.compress(path.read_bytes() + b"\n" * 9999)))
    for read in (
        lambda: log.read(tmp_path / "bomb.jsonl.gz"),
        lambda: log.read(tmp_path / "huge.jsonl"),
        lambda: log.read_all(tmp_path / "b"),
        lambda: log.read_all(tmp_path / "c"),
    ):
        with pytest.raises(UserError, match="expected a log of at most 2000 bytes, found a longer one"):
            read()


def test_a_log_of_just_that_length_is_read_whole(tmp_path, path, monkeypatch):
    monkeypatch.setattr(log, "LONGEST", path.stat().st_size)
    archive(tmp_path / "a" / log.PACKED, ("a.jsonl", path.read_bytes()))
    archive(tmp_path / "b" / log.PACKED, ("a.jsonl.gz", gzip.compress(path.read_bytes())))
    assert log.read_all(tmp_path / "a") == log.read_all(tmp_path / "b") == [log.read(path)]
    assert log.read(path).done


OLD = {
    **{name: value for name, value in HEADER.items() if name not in ("settings", "training")},
    "record": "header", "format": 1, "config": {"sgd": {"rate": 0.1}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("finished", "finished"),
        ("stopped early: no lower validation error in 3 evaluations", "early"),
        ("12 steps in a row refused: nonfinite gradient", "gave-up"),
        ("interrupted", "interrupted"),
        ("OSError", "failed"),
    ],
)
def test_logs_of_the_first_format_are_read(tmp_path, reason, status):
    records = [
        OLD, {"record": "sight", "stage": "raw", "shape": [1, 1, 2, 2], "images": "AAAAAA=="}, RECORDS[2],
        {"record": "samples", "shape": [1, 2, 2], "cases": "AAAAAA==", "reconstructions": "BBBBBB=="},
        {"record": "end", "reason": reason},
    ]  # fmt: skip
    path = tmp_path / "old.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    found = log.read(path)
    assert (found.status, found.reason) == (status, reason)
    assert found.header["settings"] == {"sgd": {"rate": 0.1}}
    assert [(each["what"], each["title"], each["shape"]) for each in found.pictures] == [
        ("data", "raw", [1, 1, 2, 2]),
        ("original", "original", [1, 1, 2, 2]),
        ("reconstruction", "reconstruction", [1, 1, 2, 2]),
    ]
    assert found.complete == (status not in ("interrupted", "failed"))


def test_the_first_format_has_the_names_of_today(tmp_path):
    """`kncg` was `ncg-kron`, and its settings `kron`."""
    old = {"name": "ncg-kron", "label": "NCG-Q, Kronecker", "color": "#D95F02", "order": 7}
    config = {"sgd": {"rate": 0.1}, "kron": {"batch": 500}}
    path = tmp_path / "old.jsonl"
    records = {**OLD, "method": old, "config": config}, {**RECORDS[2], "method": "ncg-kron"}
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    found = log.read(path)
    assert found.method == found.evaluations[0]["method"] == "kncg"
    assert found.header["method"] == {**old, "name": "kncg", "label": "KNCG", "color": "#D55E00"}
    assert found.header["settings"] == {"sgd": {"rate": 0.1}, "kncg": {"batch": 500}}
    path.write_text(json.dumps({**HEADER, "record": "header", "format": 2, "method": old}) + "\n")
    assert log.read(path).method == "ncg-kron"  # A method of today may have any name.


@pytest.mark.parametrize("field", ["method", "config"])
def test_an_old_header_without_its_tables_is_refused(tmp_path, field):
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps({**OLD, field: None}) + "\n")
    with pytest.raises(UserError, match=r"line 1: (method\.name|settings): expected a t"):
        log.read(path)


def test_figure_2s_logs_of_the_first_format_are_refused_in_one_line(tmp_path):
    path = tmp_path / "old.jsonl"
    path.write_text(f"{json.dumps(OLD)}\n{json.dumps({'record': 'part', 'what': 'training', 'name': 'x'})}\n")
    with pytest.raises(UserError, match="found figure 2’s format 1, which is read no more"):
        log.read(path)


def test_times_are_told_apart_from_what_two_runs_share():
    record = {"record": "evaluation", "iteration": 3, **TIMES, "cpu_seconds": 3.0, "squared_error": 1 / 3}
    assert log.without_times(record) == {"record": "evaluation", "iteration": 3, "squared_error": 0.333333333}
