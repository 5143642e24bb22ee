"""`natgrad list` and `natgrad show`: what there is to run, and every setting with its meaning."""

import pytest

from natgrad_paper import figures
from natgrad_paper.cli.arguments import settings
from natgrad_paper.training.settings import build, described, stated

EXPERIMENTS = ("autoencoder", "curves", "order", "race", "unlabelled")


def words(result):
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_list_fits_on_a_screen(invoke):
    found = invoke("list")
    for name in EXPERIMENTS:
        assert name in found.output
    assert "smoke, small, medium, paper" in words(found)
    assert found.output.count("\n") <= 24
    assert max(map(len, found.output.splitlines())) <= 80


def test_the_list_of_an_experiment_has_its_methods_and_presets_with_their_cost(invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    found = words(invoke("list", "curves"))
    for method in figures.load("curves").methods:
        assert method.name in found
    assert "6 methods × 1 seed × 5 min = 30 min of training" in found  # medium
    for name in EXPERIMENTS:
        for preset in figures.load(name).presets():
            assert preset in words(invoke("list", name))


@pytest.mark.parametrize(
    "arguments", [("curves",), ("curves", "small"), ("curves", "smoke"), ("order", "paper")]
)
def test_every_setting_is_shown(invoke, arguments):
    found = invoke("show", *arguments)
    text = "".join(found.output.split())
    chosen = figures.load(arguments[0])
    used = settings(chosen, chosen.presets()[arguments[1] if arguments[1:] else "small"], None)
    fields = list(described(used, chosen.settings()))
    assert len(fields) > 20
    assert found.exit_code == 0
    for field in fields:
        assert field.name.split(".")[0] in text


def test_a_setting_is_shown_with_its_value_default_and_meaning(invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.split("  ") for line in invoke("show", "sums", "both").output.splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["sgd.batch", "5", "10"] in rows
    assert ["budget.iterations", "12", "30", "Steps, in place of seconds."] in rows
    assert any(row[:3] == ["budget.seconds", "–", "–"] for row in rows)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_preset_of_every_experiment_is_valid_and_its_methods_are_known(name):
    chosen = figures.load(name)
    assert {"smoke", "small"} <= chosen.presets().keys()
    known = {method.name for method in chosen.methods}
    assert set(chosen.first_look) <= known
    for preset in chosen.presets().values():
        used = settings(chosen, preset, None)
        assert set(preset.methods) <= known
        # A log's settings are enough to run it again.
        assert build(chosen.settings, stated(used), "log") == used


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_setting_has_a_default_and_every_method_reads_sections_that_are_there(name):
    chosen = figures.load(name)
    for method in chosen.methods:
        assert set(method.sections) <= chosen.settings.model_fields.keys(), method.name
        method.own(chosen.settings())


def test_presets_are_short():
    lines = sum(len(figures.load(name).presets_file.read_text().splitlines()) for name in EXPERIMENTS)
    assert lines <= 300
