"""Settings are read strictly: what does not fit is one line with file or option, field, expected and found."""

from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, model_validator

from natgrad_paper.errors import FieldError, UserError
from natgrad_paper.training.problem import Budget
from natgrad_paper.training.settings import (
    Count,
    Decay,
    NonNegative,
    Positive,
    Section,
    Seed,
    Size,
    build,
    changed,
    described,
    merged,
    nearest,
    overrides,
    preset_file,
    presets,
    stated,
    unfit,
)


class Solver(Section):
    """The solver."""

    name: Literal["cg", "minres-qlp"] = "cg"
    """Which one."""
    rtol: NonNegative = 1e-4


class Net(Section):
    """The network."""

    units: Annotated[tuple[Count, ...], Field(strict=False, min_length=2)] = (784, 10)
    bias: bool = True


class Descent(Section):
    """Descent."""

    batch: Count = 20
    rate: Positive = 0.01
    momentum: Decay = 0.9

    @model_validator(mode="after")
    def _fits(self):
        if self.batch > 100 * self.rate + 50:
            unfit("batch", "at most what the rate allows", self.batch)
        return self


class All(Section):
    """Everything."""

    budget: Budget = Budget(seconds=45.0, evaluations=40, first=0.3)
    solver: Solver = Solver()
    net: Net = Net()
    sgd: Descent = Descent()
    chunk: Size = 1000
    """Cases at a time."""
    seed: Seed = 0


MISTAKES = [
    (("solver", "maxitr"), 3, "solver.maxitr: expected one of name, rtol, found an unknown field"),
    (("solver", "rtoll"), 3, "solver.rtoll: expected 'rtol', found an unknown field"),
    (("solvr",), {}, "solvr: expected 'solver', found an unknown field"),
    (("zebra",), {}, "zebra: expected one of budget, solver, net, sgd, chunk, seed, found an unknown field"),
    (("solver", "name"), "gmres", "solver.name: expected 'cg' or 'minres-qlp', found gmres"),
    (("solver", "rtol"), "small", "solver.rtol: expected a number, found small"),
    (("solver", "rtol"), float("nan"), "solver.rtol: expected a finite number, found nan"),
    (("sgd", "batch"), 0, "sgd.batch: expected at least 1, found 0"),
    (("sgd", "batch"), 2.5, "sgd.batch: expected a whole number, found 2.5"),
    (("sgd", "batch"), 2.0, "sgd.batch: expected a whole number, found 2.0"),
    (("sgd", "batch"), True, "sgd.batch: expected a whole number, found True"),
    (("sgd", "batch"), "20", "sgd.batch: expected a whole number, found 20"),
    (("sgd", "batch"), 10**30, "sgd.batch: expected at most 1000000000, found 1000000000000000000"),
    (("sgd", "batch"), 99, "sgd.batch: expected at most what the rate allows, found 99"),
    (("sgd", "rate"), -1, "sgd.rate: expected more than 0.0, found -1"),
    (("sgd", "rate"), float("inf"), "sgd.rate: expected a finite number, found inf"),
    (("sgd", "rate"), 10**400, "sgd.rate: expected a number, found 10000"),
    (("sgd", "rate"), False, "sgd.rate: expected a number, found False"),
    (("sgd", "momentum"), 1, "sgd.momentum: expected less than 1.0, found 1"),
    (("sgd", "momentum"), float("nan"), "sgd.momentum: expected"),
    (("sgd",), 5, "sgd: expected a table of fields, found 5"),
    (("net", "units"), [10], "net.units: expected a list of at least 2, found [10]"),
    (("net", "units"), [784, "x"], "net.units.1: expected a whole number, found x"),
    (("net", "units"), 784, "net.units: expected a list, found 784"),
    (("net", "bias"), 1, "net.bias: expected true or false, found 1"),
    (("budget", "iterations"), 5, "budget.seconds: expected a limit in seconds or in iterations, found both"),
    (("budget", "first"), 99, "budget.first: expected at most the limit, 45, found 99"),
    (("budget", "patience"), 0, "budget.patience: expected at least 1, found 0"),
    (("chunk",), [1], "chunk: expected a whole number, found [1]"),
    (("seed",), 1 << 32, "seed: expected less than 4294967296, found 4294967296"),
    (("solver", "name"), "\x1b[2Jcg\r\n", "solver.name: expected 'cg' or 'minres-qlp', found �[2Jcg"),
]


@pytest.mark.parametrize(("place", "value", "words"), MISTAKES)
def test_mistakes_are_one_line(place, value, words):
    table = stated(All())
    inner = table
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(FieldError) as caught:
        build(All, table, "mine.toml")
    assert str(caught.value).startswith("mine.toml: " + words)
    assert "\n" not in str(caught.value)


def test_what_is_stated_is_enough_to_build_it_again():
    settings = build(All, {"sgd": {"rate": 0.3}, "net": {"units": [784, 5, 2]}}, "f")
    assert settings.net.units == (784, 5, 2)
    assert build(All, stated(settings), "log") == settings
    assert "iterations" not in stated(settings)["budget"]  # what is not set is absent


def test_a_section_of_a_preset_changes_only_what_it_says():
    """The experiment's own defaults stay, where they differ from those of the section's class."""
    settings = build(All, changed(All, {"budget": {"patience": 3}}), "f")
    assert (settings.budget.seconds, settings.budget.evaluations, settings.budget.first) == (45.0, 40, 0.3)
    assert settings.budget.patience == 3


def test_of_rivals_the_changed_one_stays():
    budget = build(All, changed(All, {"budget": {"iterations": 12}}), "f").budget
    assert (budget.seconds, budget.iterations, budget.evaluations) == (None, 12, 40)
    again = build(All, changed(All, {"budget": {"iterations": 12}}, {"budget": {"seconds": 2.0}}), "f").budget
    assert (again.seconds, again.iterations) == (2.0, None)
    both = overrides(["budget.iterations=50", "budget.seconds=2"])
    with pytest.raises(UserError, match="expected a limit in seconds or in iterations, found both"):
        build(All, changed(All, both), "--set")


PRESETS = """
[tiny]
about = "seconds"
extends = "small"
budget = { iterations = 5 }
methods = ["sgd"]

[small]
about = "minutes"
methods = ["sgd", "ngd"]
sgd = { rate = 0.5, batch = 10 }
budget = { seconds = 9.0, first = 0.5 }

[deep]
extends = "tiny"
sgd = { batch = 7 }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "presets.toml"
    path.write_text(PRESETS)
    return path


def test_presets_extend_one_another(file):
    found = presets(file, All)
    assert list(found) == ["tiny", "small", "deep"]
    assert found["small"][:3] == ("small", "minutes", ("sgd", "ngd"))
    assert found["deep"].methods == ("sgd",)
    assert found["deep"].changes == {
        "sgd": {"rate": 0.5, "batch": 7},
        "budget": {"iterations": 5, "first": 0.5},  # iterations took the place of small's seconds
    }
    settings = build(All, changed(All, found["deep"].changes), found["deep"].where)
    assert (settings.sgd.batch, settings.sgd.rate, settings.budget.limit) == (7, 0.5, 5)
    assert found["deep"].where == str(file)


def test_a_users_file_extends_known_presets(file, tmp_path):
    known = presets(file, All)
    for name, text in (("mine", 'extends = "tiny"\nsgd = { rate = 0.1 }'), ("tiny", 'extends = "tiny"')):
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        found = preset_file(path, All, known)
        assert (found.name, found.methods, found.where) == (name, ("sgd",), str(path))
        assert found.changes["sgd"]["batch"] == 10
    assert known.keys() == {"tiny", "small", "deep"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[a]\nextends = "b"', "extends: expected one of "),
        ('[a]\nextends = "small"\n[smal]\n', "extends: expected 'smal', found small"),
        ('[a]\nextends = "b"\n[b]\nextends = "a"', "extends: expected"),
        ('[a]\nextends = "a"', "extends: expected"),
        ("[a]\nextends = 3", "extends: expected a text, found 3"),
        ("a = 3", "a: expected a table of fields, found 3"),
        ("[a]\nmethods = []", "methods: expected a list of at least 1, found []"),
        ('[a]\nmethods = "sgd"', "methods: expected a list, found sgd"),
        ("[a]\nmethods = [3]", "methods.0: expected a text, found 3"),
        ('[a]\nmethod = ["sgd"]', "method: expected 'methods', found an unknown field"),
        ("[a]\nsdg = { rate = 3 }", "sdg: expected 'sgd', found an unknown field"),
        ("[a]\nabout = []", "about: expected a text, found []"),
    ],
)
def test_wrong_presets_are_one_line(tmp_path, text, words):
    path = tmp_path / "presets.toml"
    path.write_text(text)
    with pytest.raises(FieldError) as caught:
        presets(path, All)
    assert str(caught.value).startswith(f"{path}: {words}")


@pytest.mark.parametrize(
    "text", ["= 3", "[solver", "a = 1\na = 2", "x" * 10, "\x00", "a = " + "9" * 5000, "a=" + "[" * 99999]
)
def test_what_is_not_toml_is_one_line(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        preset_file(path, All, {})
    assert str(caught.value).startswith(f"{path}: expected TOML")
    assert "\n" not in str(caught.value)


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(UserError, match=r"absent\.toml: expected a readable TOML file"):
        preset_file(tmp_path / "absent.toml", All, {})
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        preset_file(tmp_path / "bytes.toml", All, {})
    (tmp_path / "long.toml").write_text("#" * (2 << 20))
    with pytest.raises(UserError, match="more than 1048576 bytes"):
        preset_file(tmp_path / "long.toml", All, {})


def test_overrides_change_single_fields():
    given = [
        "solver.name=minres-qlp",
        "sgd.rate = 0.5",
        "net.units=[3, 4]",
        "solver.rtol=1",
        "net.bias=false",
    ]
    settings = build(All, changed(All, overrides(given)), "--set")
    assert (settings.solver.name, settings.sgd.rate, settings.net.units) == ("minres-qlp", 0.5, (3, 4))
    assert (settings.solver.rtol, settings.net.bias, settings.sgd.batch) == (1.0, False, 20)


@pytest.mark.parametrize("override", ["sgd.rate", "=3", "a b=1", 'x="\n', 'x="', "x=" + "[" * 9999 + '"'])
def test_bad_overrides_are_one_line_and_blamed_on_the_option(override):
    for option in ("--set", "--grid"):
        with pytest.raises(UserError) as caught:
            overrides([override], option)
        assert str(caught.value).startswith(f"{option} {override[:1].strip()}")
        assert "expected field=value" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_tables_are_merged_and_nothing_is_changed_in_place():
    table = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merged(None, table, {"a": {"c": 4}, "e": 5}) == {"a": {"b": 1, "c": 4}, "d": 3, "e": 5}
    assert merged(None, table, {"a": 6}) == {"a": 6, "d": 3}
    assert table == {"a": {"b": 1, "c": 2}, "d": 3}


def test_every_field_is_described():
    found = {field.name: field for field in described(build(All, changed(All, {"chunk": 5}), "f"), All())}
    assert found["solver.name"][1:] == ("Which one.", "cg", "cg")
    assert found["chunk"][1:] == ("Cases at a time.", 1000, 5)
    assert (found["budget.first"].default, found["budget.first"].value) == (0.3, 0.3)
    assert "Training seconds" in found["budget.seconds"].about


def test_no_guess_where_nothing_is_near():
    assert nearest("ngdl", ["ngd-l", "sgd"]) == "'ngd-l'"
    assert nearest("zebra", ["ngd-l", "sgd"]) == "one of ngd-l, sgd"


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        All().chunk = 3


def test_rivals_are_no_field():
    class Either(Section):
        rivals: ClassVar = ("a", "b")
        a: int | None = None
        b: int | None = None

    assert set(Either.model_fields) == {"a", "b"}
    assert changed(Either, {"a": 1}, {"b": 2}) == {"b": 2}
