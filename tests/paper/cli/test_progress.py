"""What the screen shows: at a terminal and elsewhere."""

import pytest
from rich.console import Console

from natgrad_paper.cli import progress
from natgrad_paper.report.views import RECONSTRUCTION
from natgrad_paper.training.log import Status
from natgrad_paper.training.loop import Event, Position

MEASURE = RECONSTRUCTION.main


def event(iteration, error=None, status=None, **step):
    errors = None if error is None else {"squared_error": error}
    position = Position(iteration, refused=2, training_seconds=1.5)
    return Event(position, iteration / 10, (step,), errors, status, "", (None, None))


@pytest.mark.parametrize(
    "kind",
    [lambda console: progress.Quiet(console, MEASURE), lambda console: progress.Live(console, 2, MEASURE)],
)
def test_displays_tell(kind):
    console = Console(record=True, width=200)
    with kind(console) as display:
        display.skip("NGD, seed 3", False)
        display.tell("[odd] words")
        update = display.begin("SGD, seed 0", False)
        for number in range(10):
            update(event(number, 3.0, damping=0.5, rho=0.25, solver_iterations=7))
        update(event(10, 2.5, Status.FINISHED, damping=float("nan")))
    text = console.export_text()
    assert "NGD, seed 3" in text
    assert "[odd] words" in text


def test_elsewhere_a_line_per_training():
    console = Console(record=True, width=200, force_terminal=False)
    display = progress.display(console, 2, MEASURE)
    assert type(display) is progress.Quiet
    update = display.begin("SGD, seed 0", False)
    update(event(3, 3.0))
    update(event(7, 2.5, Status.GAVE_UP))
    display.skip("SGD, seed 0, part", True)  # one of hundreds
    assert (
        console.export_text()
        == "SGD, seed 0: gave-up after 7 iterations, 1.5 s of training, squared error 2.5\n"
    )


def test_at_a_terminal_bars():
    console = Console(record=True, width=200, force_terminal=True)
    with progress.display(console, 2, MEASURE) as display:
        assert isinstance(display, progress.Live)
        display.begin("SGD, seed 0", False)(event(5, 2.5, damping=0.5, rho=-0.25, solver_iterations=7))
    text = console.export_text()
    for words in (
        "step      5",
        "error    2.500",
        "λ 0.5",
        "ρ -0.25",
        "solver 7",
        "2 refused",
        "all done in about",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "3 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h"), (10**6, "11.6 days")]
)
def test_times_in_words(seconds, words):
    assert progress.duration(seconds) == words
