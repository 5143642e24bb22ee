"""Runs: stopped ones go on as if nothing had happened, to the bit; nothing but their own is ever removed."""

import json
import os
import shutil
import signal
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise

import numpy as np
import pytest

from natgrad_paper.training import log, loop, stopping, surroundings
from natgrad_paper.training.checkpoint import digest
from natgrad_paper.training.log import Status
from natgrad_paper.training.problem import Budget, Until
from natgrad_paper.training.runner import Training, in_turn, taking_turns
from natgrad_paper.training.settings import build, changed, stated
from natgrad_paper.training.stopping import Stopped
from training.tiny import (
    AVERAGED,
    GROWING,
    METHODS,
    NGD,
    SGD,
    Clock,
    Notes,
    Settings,
    contents,
    drive,
    problem,
    run,
)

pytestmark = pytest.mark.usefixtures("fast_compile")


def settings(**changes):
    return build(Settings, changed(Settings, changes), "test")


def stop(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    assert drive(run(directory, METHODS, _trainers={}), in_turn) == []
    return directory


def test_leaves_a_log_of_each_and_nothing_else(undisturbed):
    assert sorted(path.name for path in undisturbed.iterdir()) == ["logs"]
    logs = log.read_all(undisturbed)
    assert [found.method for found in logs] == ["averaged", "growing", "ngd", "sgd"]
    for found in logs:
        assert (found.status, found.complete) == (Status.FINISHED, True)
        assert found.evaluations[0]["iteration"] == 0
        assert found.evaluations[-1]["iteration"] == 30
        assert found.evaluations[-1]["squared_error"] < found.evaluations[0]["squared_error"]
        assert found.evaluations[-1]["test_squared_error"] > 0
    assert len({found.evaluations[0]["squared_error"] for found in logs}) == 1


def test_clocks_are_apart_and_only_grow(undisturbed):
    for found in log.read_all(undisturbed):
        for clock in ("training_seconds", "cpu_seconds", "evaluation_seconds"):
            readings = [record[clock] for record in found.evaluations]
            assert readings == sorted(readings)
        assert found.evaluations[0]["training_seconds"] == 0
        assert found.evaluations[0]["compile_seconds"] > 0
        assert found.evaluations[-1]["cpu_seconds"] > 0


def test_headers_say_what_was_run_and_only_the_methods_own_settings(undisturbed):
    common = {"budget", "evaluation_chunk"}
    own = {"sgd": {"sgd"}, "ngd": {"ngd", "damping"}, "growing": {"growing"}, "averaged": set()}
    for found in log.read_all(undisturbed):
        header = found.header
        assert header["settings"].keys() == common | own[found.method]
        assert header["versions"].keys() == {"natgrad", "jax", "jaxlib", "numpy", "optax", "python"}
        assert header["method"]["order"] == [method.name for method in METHODS].index(found.method)
        assert header["plateau"] == {"squared_error": 3.0}
        assert header["training"] == {"name": ""}
        assert header["data"]["sha256"] == "5" * 64
        assert header["cores"] >= 1
        assert (header["damping"] is None) == (found.method in ("sgd", "growing"))
        assert header["commit"] == surroundings.commit()


def test_another_methods_settings_do_not_change_a_training(undisturbed, tmp_path):
    """Its log is the same, and a finished one stays finished."""
    other = settings(ngd={"rate": 0.5})
    drive(run(tmp_path, [SGD], settings=other), in_turn)
    assert contents(tmp_path)["sgd.0.jsonl"] == contents(undisturbed)["sgd.0.jsonl"]
    notes = Notes()
    drive(run(tmp_path, [SGD], resume=True, display=notes, settings=settings(ngd={"rate": 0.7})), in_turn)
    assert notes.skipped == ["SGD, seed 0"]
    notes = Notes()
    drive(run(tmp_path, [SGD], resume=True, display=notes, settings=settings(sgd={"rate": 0.7})), in_turn)
    assert notes.begun == ["SGD, seed 0"]


@pytest.mark.parametrize(
    ("method", "title", "iteration"),
    [
        (NGD, "NGD, seed 0", 0),
        (NGD, "NGD, seed 0", 7),
        (SGD, "SGD, seed 0", 12),
        (SGD, "SGD, seed 0", 30),
        (GROWING, "Growing, seed 0", 12),
        (AVERAGED, "Averaged, seed 0", 5),
    ],
)
def test_stopped_and_resumed_is_undisturbed(undisturbed, tmp_path, method, title, iteration):
    methods = [method] if iteration != 30 else [method, NGD]
    with pytest.raises(Stopped) as stopped:
        drive(run(tmp_path, methods, display=Notes(title, iteration, stop)), in_turn)
    assert (stopped.value.exit_code, stopped.value.directory) == (143, tmp_path)
    display = Notes()
    assert drive(run(tmp_path, methods, display=display, resume=True), in_turn) == []
    wanted = contents(undisturbed)
    assert contents(tmp_path) == {f"{each.name}.0.jsonl": wanted[f"{each.name}.0.jsonl"] for each in methods}
    finished = iteration == 30  # a stop that comes with the last step leaves nothing of it to do
    assert display.skipped == [title] * finished
    assert not list(tmp_path.glob("checkpoints/*"))


def test_stopped_after_every_call_and_resumed_each_time_is_undisturbed(undisturbed, tmp_path):
    places = [1, 2, 3, 4, 5, 7, 9, 12, 16, 22]
    for number, place in enumerate(places):
        with pytest.raises(Stopped):
            drive(
                run(tmp_path, [SGD], display=Notes("SGD, seed 0", place, stop), resume=bool(number)), in_turn
            )
    drive(run(tmp_path, [SGD], resume=True), in_turn)
    assert contents(tmp_path)["sgd.0.jsonl"] == contents(undisturbed)["sgd.0.jsonl"]
    lines = (tmp_path / "logs" / "sgd.0.jsonl").read_text().splitlines()
    resumed = [json.loads(line) for line in lines if '"resumed"' in line]
    assert [record["iteration"] for record in resumed] == places


class Late:
    """Signals of which the first comes between two looks at it."""

    def __init__(self, looks):
        self._looks = looks

    @property
    def asked(self):
        self._looks -= 1
        return signal.SIGTERM if self._looks < 0 else None


@pytest.mark.parametrize("looks", range(1, 7))
def test_no_moment_for_a_signal_leaves_a_run_without_its_checkpoint(undisturbed, tmp_path, looks):
    with pytest.raises(Stopped):
        list(run(tmp_path, [SGD], signals=Late(looks)).events(Training(SGD, 0)))
    assert len(list(tmp_path.glob("checkpoints/sgd.0/*.npz"))) == 1
    drive(run(tmp_path, [SGD], resume=True), in_turn)
    assert contents(tmp_path)["sgd.0.jsonl"] == contents(undisturbed)["sgd.0.jsonl"]


def test_two_checkpoints_and_the_older_one_if_the_newer_is_damaged(undisturbed, tmp_path):
    with pytest.raises(Stopped):
        drive(run(tmp_path, [NGD], display=Notes("NGD, seed 0", 9, stop), checkpoint_seconds=0), in_turn)
    older, newer = sorted((tmp_path / "checkpoints" / "ngd.0").iterdir())
    assert [int(path.name[:9]) for path in (older, newer)] == [8, 9]
    newer.write_bytes(newer.read_bytes()[:-1])
    display = Notes()
    drive(run(tmp_path, [NGD], display=display, resume=True), in_turn)
    assert f"{newer}: checkpoint refused: sha256" in display.told[0]
    assert display.events[0] == ("NGD, seed 0", 8)
    assert contents(tmp_path)["ngd.0.jsonl"] == contents(undisturbed)["ngd.0.jsonl"]


def test_what_came_after_the_last_checkpoint_is_done_again(undisturbed, tmp_path):
    """A process that vanishes within the first minute has none yet."""
    killed = run(tmp_path, [NGD])
    for event in islice(killed.events(Training(NGD, 0)), 12):
        reached = event.position.iteration
    assert reached == 11
    assert not list(tmp_path.glob("checkpoints/*"))
    display = Notes()
    drive(run(tmp_path, [NGD], display=display, resume=True), in_turn)
    assert display.events[0] == ("NGD, seed 0", 0)
    assert contents(tmp_path)["ngd.0.jsonl"] == contents(undisturbed)["ngd.0.jsonl"]


def test_a_changed_log_starts_again(undisturbed, tmp_path):
    with pytest.raises(Stopped):
        drive(run(tmp_path, [NGD], display=Notes("NGD, seed 0", 7, stop)), in_turn)
    path = tmp_path / "logs" / "ngd.0.jsonl"
    path.write_text(path.read_text().replace("ngd", "ngz", 1))
    display = Notes()
    drive(run(tmp_path, [NGD], display=display, resume=True), in_turn)
    assert any("log changed since its checkpoint" in line for line in display.told)
    assert display.events[0][1] == 0
    assert contents(tmp_path)["ngd.0.jsonl"] == contents(undisturbed)["ngd.0.jsonl"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("5" * 64, "6" * 64),
        lambda text: text.replace('"experiment": "sums"', '"experiment": "other"'),
        lambda text: text.replace('"rate": 0.05', '"rate": 0.06'),
        lambda text: text.replace('"seed": 0', '"seed": 1'),
        lambda text: text.replace('"status": "finished"', '"status": "failed"'),
        lambda text: text[:-40],
        lambda text: text.replace('"record": "step"', '"record": step"', 1),
        lambda text: "",
    ],
)
def test_only_the_finished_log_of_this_very_training_is_left_alone(undisturbed, tmp_path, change):
    (tmp_path / "logs").mkdir()
    text = (undisturbed / "logs" / "sgd.0.jsonl").read_text()
    assert change(text) != text
    (tmp_path / "logs" / "sgd.0.jsonl").write_text(change(text))
    display = Notes()
    drive(run(tmp_path, [SGD], display=display, resume=True), in_turn)
    assert display.begun == ["SGD, seed 0"]
    assert contents(tmp_path)["sgd.0.jsonl"] == contents(undisturbed)["sgd.0.jsonl"]


def test_what_a_kill_left_behind_of_a_finished_training_goes(undisturbed, tmp_path):
    """It came after the end of the log and before the end of the checkpoints."""
    shutil.copytree(undisturbed / "logs", tmp_path / "logs")
    (tmp_path / "checkpoints" / "sgd.0").mkdir(parents=True)
    (tmp_path / "checkpoints" / "sgd.0" / f"000000004.{'0' * 64}.npz").write_bytes(b"")
    for how in (in_turn, partial(taking_turns, seconds=1.0)):
        display = Notes()
        drive(run(tmp_path, [SGD], display=display, resume=True), how)
        assert display.skipped == ["SGD, seed 0"]
        assert not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.parametrize("iteration", [2, 5])
def test_an_early_stop_is_the_same_when_resumed_and_is_an_end(tmp_path, iteration):
    early = settings(budget={"patience": 3}, sgd={"rate": 0.5, "steps_per_call": 1})
    for name, display in (("whole", Notes()), ("stopped", Notes("SGD, seed 0", iteration, stop))):
        try:
            drive(run(tmp_path / name, [SGD], display=display, settings=early), in_turn)
        except Stopped:
            assert name == "stopped"
    assert drive(run(tmp_path / "stopped", [SGD], settings=early, resume=True), in_turn) == []
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    (found,) = log.read_all(tmp_path / "stopped")
    assert (found.status, found.reason) == (Status.EARLY, "no lower validation error in 3 evaluations")
    assert iteration < found.evaluations[-1]["iteration"] < 30
    assert found.header["data"]["train"] == [54, 3]
    again = Notes()
    drive(run(tmp_path / "stopped", [SGD], display=again, settings=early, resume=True), in_turn)
    assert again.skipped == ["SGD, seed 0"]


def nowhere(targets=np.nan):
    inputs, _ = problem().train
    return problem(train=(inputs, np.full((len(inputs), 1), targets, np.float32)))


def test_a_training_that_gives_up_keeps_its_checkpoint_and_goes_on_when_all_is_well(tmp_path):
    failures = drive(run(tmp_path, [NGD], problem=nowhere()), in_turn)
    assert failures == ["NGD, seed 0: 10 steps in a row refused: nonfinite gradient"]
    (found,) = log.read_all(tmp_path)
    assert (found.status, found.complete, found.done) == (Status.GAVE_UP, True, False)
    assert [int(path.name[:9]) for path in (tmp_path / "checkpoints" / "ngd.0").iterdir()] == [10]
    assert drive(run(tmp_path, [NGD], resume=True), in_turn) == []
    (found,) = log.read_all(tmp_path)
    assert (found.status, found.evaluations[-1]["refused"], found.evaluations[-1]["iteration"]) == (
        "finished",
        10,
        30,
    )
    assert not list(tmp_path.glob("checkpoints/*"))


def test_giving_up_is_a_result_where_a_run_says_so(tmp_path):
    drive(run(tmp_path, [NGD], problem=nowhere()), in_turn)
    before, again = contents(tmp_path), Notes()
    drive(run(tmp_path, [NGD], display=again, resume=True, retries=False), in_turn)
    assert (contents(tmp_path), again.skipped) == (before, ["NGD, seed 0"])


def test_a_method_that_cannot_be_resumed_starts_again(undisturbed, tmp_path):
    host = replace(NGD, resumes=False)
    with pytest.raises(Stopped):
        drive(replace(run(tmp_path, [host], display=Notes("NGD, seed 0", 9, stop)), known=(host,)), in_turn)
    display = Notes()
    drive(replace(run(tmp_path, [host], display=display, resume=True), known=(host,)), in_turn)
    assert display.events[0] == ("NGD, seed 0", 0)
    assert contents(tmp_path)["ngd.0.jsonl"][1:] == contents(undisturbed)["ngd.0.jsonl"][1:]


def test_given_up_with_the_budget_spent_says_it_again_and_adds_nothing(tmp_path):
    short, seen = settings(budget={"iterations": 10}), []
    for resume in (False, True, True):
        failures = drive(run(tmp_path, [NGD], problem=nowhere(), settings=short, resume=resume), in_turn)
        assert failures == ["NGD, seed 0: 10 steps in a row refused: nonfinite gradient"]
        seen.append(contents(tmp_path))
    assert seen[0] == seen[1] == seen[2]


def test_damping_at_its_bound_ends_a_training_and_counts_on(tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "PATIENCE", 5)
    monkeypatch.setattr(loop, "highest_damping", lambda optimizer: 1e-3)  # λ starts above it
    for steps, resume in ((5, False), (6, True)):
        (failure,) = drive(run(tmp_path, [NGD], resume=resume), in_turn)
        assert failure == f"NGD, seed 0: {steps} steps in a row with λ at its upper bound, 0.001"
        (found,) = log.read_all(tmp_path)
        assert found.status is Status.GAVE_UP


def test_seeds_are_the_outer_loop_and_differ(tmp_path):
    display = Notes()
    drive(run(tmp_path, [SGD, NGD], (3, 1), display=display), in_turn)
    assert display.begun == ["SGD, seed 3", "NGD, seed 3", "SGD, seed 1", "NGD, seed 1"]
    found = {
        (each.method, each.seed): each.evaluations[-1]["squared_error"] for each in log.read_all(tmp_path)
    }
    assert len(set(found.values())) == 4


def test_taking_turns_gives_the_same_numbers(undisturbed, tmp_path):
    display = Notes()
    assert drive(run(tmp_path, METHODS, display=display), partial(taking_turns, seconds=1e-9)) == []
    assert contents(tmp_path) == contents(undisturbed)
    order = list(dict.fromkeys(title for title, _ in display.events))
    assert len(order) == 4
    changes = sum(one[0] != other[0] for one, other in pairwise(display.events))
    assert changes > 20  # they do advance alternately
    assert not list(tmp_path.glob("checkpoints/*"))


def test_turns_are_so_many_seconds_of_training(tmp_path):
    display = Notes()
    drive(run(tmp_path, [SGD, NGD], display=display), partial(taking_turns, seconds=1e9))
    changes = sum(one[0] != other[0] for one, other in pairwise(display.events))
    assert changes == 1


def test_all_that_take_turns_save_when_one_is_stopped(undisturbed, tmp_path):
    display = Notes("NGD, seed 0", 9, stop)
    with pytest.raises(Stopped):
        drive(run(tmp_path, METHODS, display=display), partial(taking_turns, seconds=1e-9))
    saved = {path.parent.name: int(path.name[:9]) for path in tmp_path.glob("checkpoints/*/*.npz")}
    assert saved.keys() == {"sgd.0", "ngd.0", "growing.0", "averaged.0"}
    assert min(saved.values()) > 0
    for found in log.read_all(tmp_path):
        assert found.status is Status.INTERRUPTED
    again = Notes()
    assert (
        drive(run(tmp_path, METHODS, display=again, resume=True), partial(taking_turns, seconds=1e-9)) == []
    )
    assert dict(reversed(again.events)) == {
        f"{method.label}, seed 0": saved[f"{method.name}.0"] for method in METHODS
    }
    assert contents(tmp_path) == contents(undisturbed)


def test_a_sleep_is_in_the_log(tmp_path, monkeypatch):
    clock, display = Clock(), Notes()
    monkeypatch.setattr(loop, "time", clock)
    whole = run(tmp_path, [NGD], display=display)
    advance = whole.trainer(NGD)._loop

    def drowsy(*given):
        compiled = advance(*given)

        def call(*rest):
            clock.move(100.0 * (display.events[-1][1] == 3), 0.0)
            return compiled(*rest)

        return call

    monkeypatch.setattr(whole.trainer(NGD), "_loop", drowsy)
    drive(whole, in_turn)
    (found,) = log.read_all(tmp_path)
    (gap,) = found.gaps
    assert (gap["iteration"], gap["seconds"]) == (4, 100.0)
    assert found.evaluations[-1]["training_seconds"] == 0.0


def later(run, name, **changes):
    return Training(SGD, 0, name, {"kind": "later", "factor": 2.5}, budget=Until(12), **changes)


def test_named_trainings_start_where_another_was_kept(tmp_path):
    whole = run(tmp_path, [SGD])

    def keep(event):
        if event.position.iteration == 9:
            whole.keep(Training(SGD, 0), "middle", event)

    whole.train(Training(SGD, 0), keep)
    at, *_ = start = whole.start_of(Training(SGD, 0), "middle")
    assert at.iteration == 9
    assert whole.start_of(Training(SGD, 0), "other") is None
    found = whole.train(later(whole, "part", start=start))
    assert found.header["training"] == {"name": "part", "kind": "later", "factor": 2.5}
    assert (tmp_path / "logs" / "sgd.0.part.jsonl").exists()
    assert [record["iteration"] for record in found.evaluations] == [12]
    usual = log.read(tmp_path / "logs" / "sgd.0.jsonl")
    at_12 = [each for each in usual.evaluations if each["iteration"] == 12]
    assert (
        found.evaluations[-1]["squared_error"] == at_12[0]["squared_error"]
    )  # it saw what the usual one saw
    again = run(tmp_path, [SGD], resume=True)
    assert again.train(later(again, "part", start=start)).header == found.header
    assert again.display.skipped == ["SGD, seed 0, part"]
    # Other facts are another training.
    other = replace(later(again, "part", start=start), facts={"kind": "other"})
    again.train(other)
    assert again.display.begun == ["SGD, seed 0, part"]


def test_outputs_are_kept_until_dropped_and_believed_only_if_the_log_speaks_of_them(tmp_path):
    whole = run(tmp_path, [SGD])
    training = later(whole, "part", outputs=lambda params: np.asarray(params["w"]))
    assert whole.outputs(training) is None
    found = whole.train(training)
    assert found.measures[0]["name"] == "outputs"
    kept = whole.outputs(training)
    assert kept.shape == (3, 5)
    path = tmp_path / "outputs" / "sgd.0.part.npy"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert whole.outputs(training) is None
    path.write_bytes(raw)
    np.testing.assert_array_equal(whole.outputs(training), kept)
    whole.drop([training, training])
    assert whole.outputs(training) is None
    assert not path.exists()


def test_other_numbers_in_the_optimizer(tmp_path):
    whole = run(tmp_path, [SGD])
    usual = whole.train(later(whole, "usual"))
    slow = whole.train(later(whole, "slow", change=lambda optimizer: replace(optimizer, search=_rate(1e-3))))
    assert slow.evaluations[-1]["squared_error"] > usual.evaluations[-1]["squared_error"]
    assert slow.evaluations[-1]["compile_seconds"] == 0


def _rate(value):
    import natgrad as ng

    return ng.FixedRate(value)


def test_tidying_takes_what_is_of_this_method_and_seed_alone(tmp_path):
    for name in ("sgd.1", "sgd.1@a", "sgd.1.part", "sgd.10", "sgd.12.part", "ngd.1", "xsgd.1"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "outputs").mkdir()
    for name in ("sgd.1.part.npy", "sgd.10.part.npy", ".sgd.1.part.npy"):
        (tmp_path / "outputs" / name).write_bytes(b"")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "sgd.1.jsonl").write_text("")
    whole = run(tmp_path, [SGD])
    whole.tidy(SGD, 1)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.parent != tmp_path)
    assert left == [
        "checkpoints/ngd.1", "checkpoints/sgd.10", "checkpoints/sgd.12.part", "checkpoints/xsgd.1", "logs/sgd.1.jsonl",
        "outputs/sgd.10.part.npy",
    ]  # fmt: skip
    whole.tidy(SGD, 10)
    assert not (tmp_path / "outputs").exists()


def test_a_run_is_resumed_with_more_methods_and_seeds(undisturbed, tmp_path):
    drive(run(tmp_path, [SGD]), in_turn)
    display = Notes()
    drive(run(tmp_path, [SGD, NGD], (0, 1), display=display, resume=True), in_turn)
    assert display.skipped == ["SGD, seed 0"]
    assert display.begun == ["NGD, seed 0", "SGD, seed 1", "NGD, seed 1"]
    assert contents(tmp_path)["ngd.0.jsonl"] == contents(undisturbed)["ngd.0.jsonl"]


def test_a_signal_before_the_first_training_begins_none(tmp_path):
    whole = run(tmp_path, [SGD])
    with whole.signals:
        stop(signal.SIGINT)
        with pytest.raises(Stopped) as stopped:
            in_turn(whole)
    assert stopped.value.exit_code == 130
    assert not list(tmp_path.iterdir())


def test_digests_tell_settings_apart():
    assert digest(stated(settings())) == digest(json.loads(json.dumps(stated(settings()))))
    assert digest(stated(settings())) != digest(stated(settings(damping=2.0)))
    assert settings().budget == Budget(iterations=30, evaluations=5)
