"""Mistyped settings: exit code 2 and one line with file, field, expected and found; nothing is left behind."""

import copy
import json
import os
import resource
import subprocess
import sys
import time
import types
import typing
from dataclasses import dataclass

import numpy as np
import pytest
from chain import SOURCE
from typer.testing import CliRunner

from natgrad_paper import figures
from natgrad_paper.cli.arguments import settings
from natgrad_paper.cli.command import app
from natgrad_paper.figures.arena.measured import NAMES
from natgrad_paper.training.settings import Section, stated

SECONDS = 20.0
"""Of the processor: several times what a slow machine needs, so that only what never ends takes longer."""


@dataclass(frozen=True)
class Case:
    """A mistake: what stands in the file (or how it comes to be one), and what the line must name."""

    experiment: str
    content: object
    """A table, text, bytes, or a function that makes something at a path."""
    names: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    file: str = "mine.toml"
    named: bool = False
    """Whether the file must be named, although the mistake may be in the arguments."""


def toml(table, prefix=""):
    """Return a table as TOML; NaN and infinities as TOML writes them."""
    lines, rest = [], []
    for name, value in table.items():
        key = json.dumps(name)
        if isinstance(value, dict):
            rest.append(f"[{prefix}{key}]\n{toml(value, f'{prefix}{key}.')}")
        else:
            lines.append(f"{key} = {value if isinstance(value, float) else json.dumps(value)}\n")
    return "".join(lines + rest)


def leaves(kind, prefix=()):
    """Return (place, type or section) of every field."""
    for name, field in kind.model_fields.items():
        place = (*prefix, name)
        bare = next((part for part in typing.get_args(field.annotation) if part is not type(None)), None)
        found = bare if types.NoneType in typing.get_args(field.annotation) else field.annotation
        yield place, found
        if isinstance(found, type) and issubclass(found, Section):
            yield from leaves(found, place)


def kind_of(hint):
    """Return the kind of value that a field takes."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    origin = typing.get_origin(hint)
    return tuple if origin is tuple else str if origin is typing.Literal else hint


def changed(table, place, value=None, name=None):
    """Return the table with a field set, or removed, or under another name."""
    new = copy.deepcopy(table)
    inner = new
    for part in place[:-1]:
        inner = inner.setdefault(part, {})
    old = inner.pop(place[-1], None)
    if name is not None:
        inner[name] = old if old is not None else 1
    elif value is not None:
        inner[place[-1]] = value
    return new


WRONG = {
    int: [-1, 2.5, float("nan"), True, "three", [1], {"a": 1}, -(10**30), ""],
    float: [-1, float("nan"), float("inf"), False, "fast", [0.1], {"a": 1}, 10**400, "0.1"],
    bool: [0, 1, "true", 0.0, [True], {"a": True}],
    str: [3, True, 0.5, ["cg"], {"a": 1}, "nonesuch", ""],
    tuple: [784, "784", [], {"a": 1}, [True], [1.5], [-784], ["784"], [[784]], True],
}
FINE = {"limit.factors": ([],), "levels": ([], [1.5])} | {
    f"targets.{problem}.{field}": values for problem in NAMES for field, values in {"error": (-1,)}.items()
}
"""What is not wrong: these lists, and errors below zero."""


def settings_of(name):
    """Return an experiment's kind of settings, and those of its preset `smoke` as tables."""
    experiment = figures.load(name)
    return experiment.settings, stated(settings(experiment, experiment.presets()["smoke"], None))


def generated(name):
    """Return the mistakes that follow from an experiment's own fields."""
    whole, table = settings_of(name)
    for place, hint in leaves(whole):
        dotted, kind = ".".join(place), kind_of(hint)
        yield Case(name, changed(table, place, name=f"{place[-1]}x"), (f"{dotted}x: expected '{place[-1]}'",))
        if issubclass(kind, Section):
            for value in (3, "text", [1], True):
                yield Case(name, changed(table, place, value), (f"{dotted}: expected a table of fields",))
            continue
        free = typing.get_origin(hint) is not typing.Literal and kind is str
        for value in WRONG[kind]:
            if (free and isinstance(value, str)) or value in FINE.get(dotted, ()):
                continue  # nothing wrong with it
            yield Case(name, changed(table, place, value), (f": {dotted}", ": expected ", ", found "))


def curves_by_hand():
    """Return mistakes that only the author of Curves can know: what fits together, and what fits in memory."""
    _, table = settings_of("curves")
    huge = 10_000_000_000
    few = "expected batches of at most 200 training cases, found"
    for place, value, words in (
        ("data.train", 20_001, "at most 20000, found 20001"), ("data.train", 1, "at least 2, found 1"),
        ("data.test", 10_001, "at most 10000, found 10001"), ("data.seed", 1 << 32, "found 4294967296"),
        ("nesterov.batch", huge, "at most 1000000000, found"), ("ksd.part", huge, "at most 1000000000"),
        ("nesterov.momentum", 1, "less than 1.0, found 1"), ("kncg.first", 51, "at most batch = 50, found 51"),
        ("kncg.probe", 0, "at least 1, found 0"), ("damping.initial", 0.0, "more than 0"),
        ("model.encoder", [784], "a list of at least 2"), ("model.encoder", [783, 10], "starts with 784"),
        ("model.encoder", [784, huge], "at most 10000"), ("model.encoder", [784, 0], "at least 1, found 0"),
        ("model.encoder", [784] * 101, "a list of at most 100"), ("ksd.size", huge, "at most 100000"),
        ("hf.maxiter", huge, "at most 100000"), ("full.maxiter", huge, "at most 100000"),
        ("lbfgs.memory", huge, "at most 100000"), ("sgd.steps_per_call", huge, "at most 100000"),
        ("budget.evaluations", huge, "at most 100000"), ("evaluation_chunk", huge, "at most 100000"),
        ("budget.seconds", 3.0, "in seconds or in iterations, found both"),
        ("budget.first", 13.0, "at most the limit, 12, found 13"),
        ("solver.name", "CG", "'cg' or 'minres-qlp', found CG"),
        ("damping.reduction", "cubic", "'linear' or 'quadratic', found cubic"),
    ):  # fmt: skip
        yield Case("curves", changed(table, place.split("."), value), (f": {place}", "expected", words))
    for place, value, method, words in (
        ("sgd.batch", 201, "sgd", f"sgd: {few} 201"), ("adam.batch", 201, "adam", f"adam: {few} 201"),
        ("tonga.batch", 300, "tonga", f"tonga: {few} 300"), ("ngd.batch", 151, "ngd", f"ngd: {few} 201"),
        ("ngd.metric_batch", 151, "ngd", f"ngd: {few} 201"), ("hf.part", 201, "hf", f"hf: {few} 201"),
        ("ksd.part", 201, "ksd", f"ksd: {few} 201"), ("kncg.batch", 201, "kncg", f"kncg: {few} 201"),
        ("ngd.batch", 101, "ngd-search-fresh", f"ngd: {few} 202"),
    ):  # fmt: skip
        yield Case(
            "curves", changed(table, place.split("."), value), (words,), ("--methods", method), named=True
        )
    escape = changed(table, ("solver", "name"), "\x1b[2Jcg\r\n")
    yield Case("curves", escape, ("solver.name: expected", "found �[2Jcg"))


def files(name):
    """Return files that are no settings, or no files."""
    good = toml(settings_of(name)[1])
    readable = "expected a readable TOML file, found none"
    for content, words in (
        ("= 3", "expected TOML"), ("[data", "expected TOML"), ("[data]\n[data]\n", "expected TOML"),
        ("a = 1\na = 2", "expected TOML"), ("x" * 99, "expected TOML"), (good + "\x00", "expected TOML"),
        (good + "\n[", "expected TOML"), (good.replace("]", ")", 1), "expected TOML"), ('a = "', "expected TOML"),
        ("a = " + "[" * 100_000, "expected TOML"), ("a = " + "9" * 5000, "expected TOML"),
        ("a = 2026-99-99", "expected TOML"), ("a = 2026-09-09", "a: expected"),
        (good.encode("utf-16"), readable), (b"\xff\xfe\x00", readable), (b"\x89PNG\r\n\x1a\n" * 50, readable),
        ("#" * (2 << 20), readable), (lambda path: path.mkdir(), readable), (lambda path: None, readable),
        (lambda path: path.symlink_to(path), readable), (lambda path: path.symlink_to("/dev/zero"), readable),
        (os.mkfifo, readable), (lambda path: hole(path, 10 << 30), readable),
        (json.dumps({"data": {}}), "expected TOML"), ("\ufeff" + good, "expected TOML"),
        ('extends = "smal"', "extends: expected 'small', found smal"), ("extends = 3", "extends: expected a text"),
        ("methods = []", "methods: expected a list of at least 1"), ('methods = ["x"]', "methods: expected"),
        ("about = 3", "about: expected a text, found 3"), ("methods = 3", "methods: expected a list, found 3"),
    ):  # fmt: skip
        yield Case(name, content, (words,))


def hole(path, size):
    with path.open("wb") as stream:
        stream.truncate(size)  # takes no space


def overrides(name):
    for word in (
        "budget.iterations",
        "=3",
        "a b=1",
        'budget="',
        "evaluation_chunk=x",
        "evaluation_chunkk=3",
        "x=" + "[" * 9999,
    ):
        field = word.split("=")[0].split(".")[0]
        yield Case(name, "", ("--set", field, "expected", "found"), ("--set", word))
    for word in ("-1", "one", "1.5", "0", "1001", "1,-2", "4294967296,", "9" * 99 + ",", ",", "0x1"):
        yield Case(name, "", ("--seeds: expected", "found"), ("--seeds", word))
    for word in ("nonesuch", "sgd;ngd", "SGD,ngd,,x"):
        yield Case(name, "", ("--methods: expected", "found"), ("--methods", word))


def requests():
    """Return `run.json` files from which no run can go on."""
    _, table = settings_of("curves")
    good = {
        "experiment": "curves", "preset": "smoke", "methods": ["sgd"], "seeds": [0], "data": "", "settings": table,
    }  # fmt: skip
    for field, value, words in (
        ("experiment", "order!", "expected a run of curves, found one of order!"),
        ("experiment", 3, "experiment: expected a text, found 3"),
        ("methods", ["sdg"], "run.json: methods: expected 'sgd', found 'sdg'"), ("methods", [], "methods: expected"),
        ("methods", [3], "methods.0: expected"), ("methods", "sgd", "methods: expected"),
        ("seeds", [-1], "seeds.0: expected"), ("seeds", [True], "seeds.0: expected"), ("seeds", ["0"], "seeds.0: "),
        ("seeds", [1 << 40], "seeds.0: expected"), ("seeds", [], "seeds: expected"),
        ("seeds", [0.5], "seeds.0: expected"), ("seeds", 0, "seeds: expected"),
        ("data", None, "data: expected a text"), ("data", "/nonesuch", "/nonesuch: expected"),
        ("settings", [], "settings: expected a table"), ("settings", None, "settings: expected a table"),
        ("settings", {**table, "sgd": 3}, "sgd: expected a table"), ("preset", 3, "preset: expected a text"),
        ("settings", {**table, "sdg": {}}, "sdg: expected 'sgd', found an unknown field"),
        ("settings", {"budget": {}}, "budget.seconds: expected a limit in seconds or in iterations, found neither"),
        ("more", 1, "more: expected"),
    ):  # fmt: skip
        yield Case("curves", json.dumps({**good, field: value}), (words,), ("--resume",), "run.json")
    for field in good:
        rest = json.dumps({name: value for name, value in good.items() if name != field})
        if field != "data":  # which has a default
            yield Case("curves", rest, (f"{field}: expected", "found nothing"), ("--resume",), "run.json")
    for text in ("", "{", "3", "null", "[]", "[" * 100_000, '{"settings": ' + "9" * 5000 + "}", b"\xff"):
        yield Case("curves", text, ("run.json: ", "expected", "found"), ("--resume",), "run.json")


CASES = [case for name in figures.names() for case in (*generated(name), *files(name), *overrides(name))]
CASES += [*curves_by_hand(), *requests()]


def prepare(case, directory):
    """Write the case's file; return it and the command's arguments."""
    directory.mkdir()
    path = directory / case.file
    if callable(case.content):
        case.content(path)
    elif isinstance(case.content, bytes):
        path.write_bytes(case.content)
    else:
        path.write_text(toml(case.content) if isinstance(case.content, dict) else case.content)
    out = directory if case.file == "run.json" else directory / "out"
    source = [] if case.file == "run.json" else ["--preset", str(path)]
    return path, ["run", case.experiment, *source, "--out", str(out), *case.arguments]


def check(case, directory, code, output, path):
    """Whether the end was as promised: the code, the line, nothing left behind."""
    asked = case.arguments and case.file != "run.json" and not case.named
    named = () if asked else (str(path),)
    if case.names[0].startswith(("/", "expected a run of")):
        named = ()  # another file, or the directory, is named
    locked = {".lock"} if case.file == "run.json" else set()  # A run that is resumed has a lock.
    left = sorted({entry.name for entry in directory.iterdir() if entry != path} - locked)
    assert code == 2, (case, code, output)
    assert output.count("\n") == 1, (case, output)
    assert output.startswith("natgrad: "), (case, output)
    assert all(word in output for word in (*named, *case.names)), (case, output)
    assert "Traceback" not in output
    assert left == [], (case, left)


def refuse(tmp_path, cases):
    longest = 0.0
    for number, case in enumerate(cases):
        path, arguments = prepare(case, tmp_path / str(number))
        began = time.process_time()
        result = CliRunner().invoke(app, arguments)
        longest = max(longest, time.process_time() - began)
        check(case, path.parent, result.exit_code, result.output, path)
    assert longest < SECONDS
    return longest


def test_a_sample_is_one_line_each(tmp_path):
    chosen = np.random.default_rng(0).choice(len(CASES), 80, replace=False)
    refuse(tmp_path, [CASES[number] for number in chosen])


@pytest.mark.long
def test_all_are_one_line_each(tmp_path):
    longest = refuse(tmp_path, CASES)
    print(f"{len(CASES)} malformed configs, {len(CASES)} refused in one line, the slowest in {longest:.2f} s")
    assert len(CASES) >= 100


@pytest.mark.parametrize("number", [0, len(CASES) // 2])
def test_the_command_itself(tmp_path, number):
    path, arguments = prepare(CASES[number], tmp_path / "case")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    around = {**os.environ, "PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-m", "natgrad_paper", *arguments]
    result = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    check(CASES[number], path.parent, result.returncode, result.stderr, path)
    assert after.ru_utime - before.ru_utime < SECONDS
