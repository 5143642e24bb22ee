"""What a figure is made of: settings, methods, a problem, and the story of its report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import create_model

from natgrad_paper.report.story import Story
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.runner import Run, in_turn
from natgrad_paper.training.settings import Preset, Section, build, changed, merged, presets, stated


@dataclass(frozen=True)
class Experiment:
    """One figure: everything the command needs to list it, run it and report it."""

    name: str
    title: str
    settings: type[Section]
    """All settings: `settings_with` joins the experiment's own with its methods'."""
    methods: tuple[Method, ...]
    prepare: Callable[[Any, Path | None], Problem]
    """From the settings and the user's data file, if any, to the problem."""
    first_look: tuple[str, ...]
    """The methods that run if neither the command nor the preset names any."""
    story: Story
    """What the report says."""
    presets_file: Path | None = None
    """The file with one table per preset; None if the defaults, as `small`, are the only preset."""
    also: tuple[Preset, ...] = ()
    """Presets beside those of the file."""
    drive: Callable[[Run], list[str]] = in_turn
    """What is trained, in which order: every method from every seed, unless the experiment has a protocol of its own.
    It returns a line for each training that ended early."""
    whole: bool = False
    """Whether its methods make sense only together, so that all of them run."""
    cost: Callable[[Any, int, int], str] | None = None
    """What a run costs, in words, from (settings, methods, seeds), if the budget does not tell."""
    problems: Callable[[Any], int | None] = lambda settings: 1
    """On how many problems a method is trained from each seed, from the settings; None if that is not known."""
    lapack: bool = False
    """Whether its methods decompose large matrices by LAPACK, which other programs slow down."""

    def presets(self) -> dict[str, Preset]:
        """Return the presets by name."""
        if self.presets_file is None:
            return {"small": Preset("small", "the defaults", (), {}, "the defaults")}
        return presets(self.presets_file, self.settings) | {each.name: each for each in self.also}


def settings_with(own: type[Section], methods: Sequence[Method]) -> type[Section]:
    """Return settings with a section for the constants of each method."""
    sections: dict[str, Any] = {}
    for method in methods:
        if method.settings is not None:
            sections.setdefault(method.section or method.name, (method.settings, method.settings()))
    # `__module__` is left out: pydantic would look for docstrings at the line of that module that calls this.
    return create_model(own.__name__, __base__=own, __doc__=own.__doc__, **sections)


def figure(
    name: str, story: Story, own: type[Section], methods: tuple[Method, ...],
    prepare: Callable[[Any, Path | None], Problem], first_look: tuple[str, ...], paper: str = "",
    otherwise: Mapping[str, Any] = MappingProxyType({}), **rest: Any,
) -> Experiment:  # fmt: skip
    """Return an experiment that has a package of its own, with its presets in it.

    Args:
        name: The name of the package.
        story: What the report says; the paper's settings are added.
        own: The experiment's settings, without those of its methods.
        methods: All methods.
        prepare: From settings to the problem.
        first_look: The methods that run unless others are named.
        paper: Sections and dotted fields of the preset `paper` whose values are the paper's own, separated by spaces.
        otherwise: The paper's values of settings that even that preset changes.
        **rest: Further fields.
    """
    settings, file = settings_with(own, methods), Path(__file__).parent / name / "presets.toml"
    told: dict[str, Any] = {}
    if paper:
        preset = presets(file, settings)["paper"]
        table = stated(build(settings, changed(settings, preset.changes), preset.where))
        for section, _, field in (words.partition(".") for words in paper.split()):
            told = merged(None, told, {section: {field: table[section][field]} if field else table[section]})
    story = replace(story, paper=merged(None, told, otherwise))
    return Experiment(name, story.title, settings, methods, prepare, first_look, story, file, **rest)
