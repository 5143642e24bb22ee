"""Figure 2's protocol: against a plain re-implementation, whatever the blocks, however often it is stopped."""

import base64
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import order_plain
import pytest
import stream_part
from typer.testing import CliRunner

import natgrad as ng
from natgrad_paper import cache as compiled
from natgrad_paper import cli, config, experiments, log
from natgrad_paper.data import characters, glyphs
from natgrad_paper.order import numbers, protocol, study
from natgrad_paper.order.config import Config
from natgrad_paper.order.courses import Drifting, Examples, Mix, Plain, Replaced
from natgrad_paper.order.journal import Journal
from natgrad_paper.order.learner import COMPETITORS, Learner
from natgrad_paper.order.walk import Training, Walker
from natgrad_paper.stop import GivenUp, Stop

pytestmark = pytest.mark.usefixtures("fast_compile")

TINY = """
validation = 40
held_out = 10
minutes = 1
repeats = 2
[stream]
side = 16
batch = 4
segment = 2
block = 1
segments = 2
[model]
hidden = 3
[sgd]
rate = 2.0
[ngd]
rate = 6.0
damping = 1.0
maxiter = 40
rtol = 1e-6
[match]
tolerance = 0.001
trainings = 2
[limit]
factors = [0.5]
[drift]
width = 8
"""


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module", autouse=True)
def _own_cache():
    """Tests leave nothing in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "enable", lambda: None)
        yield


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    path = tmp_path_factory.mktemp("preset") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def tiny(preset):
    return config.load(Config, preset)


@pytest.fixture(scope="module")
def source():
    return characters.source(glyphs.embedded())


@pytest.fixture(scope="module")
def directory(preset, tmp_path_factory, fast_compile):
    directory = tmp_path_factory.mktemp("order") / "run"
    result = invoke("run", "order", "--preset", preset, "--out", directory)
    assert result.exit_code == 0, result.output
    assert "depend less" in " ".join(result.output.split())
    return directory


@pytest.fixture(scope="module")
def logs(directory):
    return {found.header["method"]["name"]: found for found in log.read_all(directory)}


@pytest.fixture(scope="module")
def draw(source):
    @cache
    def stream(number):
        inputs, labels = characters.draw(
            source, characters.stream(0, number), jnp.arange(64, dtype=jnp.uint32), side=16
        )
        return np.asarray(inputs, np.float64), np.asarray(labels)

    return lambda number, k: (stream(number)[0][k], stream(number)[1][k])


@pytest.mark.parametrize(("method", "damping"), [("sgd", None), ("ngd", 1.0)])
@pytest.mark.parametrize("segment", [1, 2])
def test_variance_is_that_of_plain_trainings(tiny, logs, draw, method, damping, segment):
    found = logs[method]
    held_out = np.stack([draw(2, k)[0] for k in range(tiny.held_out)])
    rate = numbers.matched(found)["rate"]
    expected = order_plain.variance(tiny, 0, rate, damping, draw, segment, held_out)
    assert expected > 1e-8
    np.testing.assert_allclose(numbers.curve(found)[segment - 1], expected, rtol=5e-3)


def test_every_part_is_in_the_logs(tiny, logs):
    for found in logs.values():
        assert found.end == log.FINISHED
        assert len(numbers.errors(found)) == tiny.repeats * tiny.stream.segments
        assert [factor for factor, _ in numbers.limit(found)] == [1.0, 0.5]
        assert len(numbers.drift_errors(found)) == 2
        for training in numbers.TRACED:
            assert numbers.trace(found, training)[0].tolist() == [0, 2, 4, 6, 8]
        assert numbers.refused(found) == 0


def test_the_matched_rate_is_the_best_of_those_tried(logs):
    starts = {name: numbers.trials(found)[0] for name, found in logs.items()}
    assert (starts["sgd"][0], starts["ngd"][0]) == (2.0, 6.0)
    target = max(error for _, error in starts.values())
    for found in logs.values():
        tried = dict(numbers.trials(found))
        matched = numbers.matched(found)
        assert abs(tried[matched["rate"]] - target) == min(abs(error - target) for error in tried.values())
        assert numbers.unperturbed_error(found) == tried[matched["rate"]]


@pytest.fixture
def walker(tiny, source, tmp_path):
    header = {
        "experiment": "order", "method": {"name": ""}, "config": {}, "data": {"sha256": ""}, "versions": {},
        "cores": 1, "platform": "",
    }  # fmt: skip
    with Journal(tmp_path / "logs" / "x.jsonl", header, False, pytest.fail) as journal:

        def make(name):
            competitor = next(each for each in COMPETITORS if each.name == name)
            examples = Examples(tiny, source, 0)
            return Walker(tiny, Learner(competitor, tiny), examples, 0, journal, Stop(), pytest.fail)

        yield make


@pytest.mark.parametrize("method", ["sgd", "ngd"])
def test_joining_in_is_training_from_scratch_to_the_bit(tiny, walker, method):
    walk = walker(method)
    starts = {}
    walk.walk(Training("plain", Plain(), 1.0), look=lambda block, trained: starts.update({block: trained}))
    course = Replaced(2, 1)
    joined = walk.walk(Training("joined", course, 1.0, segment=2), starts[tiny.stream.first_block(2)])
    whole = walk.walk(Training("whole", course, 1.0))
    plain = walk.learner.start(0)[0]
    for a, b, c in zip(*map(jax.tree.leaves, (joined.params, whole.params, plain)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)


def test_without_a_rate_nothing_varies(walker):
    walk = walker("sgd")
    inputs, _ = walk.examples.held_out()
    outputs = [
        np.asarray(walk.learner.logits(walk.walk(Training(f"r{r}", Replaced(1, r), 0.0)).params, inputs))
        for r in (1, 2)
    ]
    assert protocol.variances(np.stack(outputs)) == {"variance": 0.0, "logit_variance": 0.0}


def test_variances_of_known_outputs():
    logits = np.log(np.array([[[0.5, 0.5]], [[0.25, 0.75]]]))
    found = protocol.variances(logits + 7)
    np.testing.assert_allclose(found["variance"], 0.25**2 / 2)
    np.testing.assert_allclose(found["logit_variance"], (np.log(3) / 2) ** 2 / 2)


@pytest.mark.parametrize("course", [Plain(), Replaced(2, 2), Drifting(), Drifting(backwards=True)])
def test_the_stream_does_not_depend_on_batches_blocks_or_memory(tiny, source, course):
    def examples(changes):
        table = json.loads(json.dumps(dataclasses.asdict(tiny)))
        table["stream"] |= changes
        changed = config.build(Config, table, "test")
        found = Examples(changed, source, 0)
        blocks = [found.block(course, number) for number in reversed(range(changed.stream.blocks))][::-1]
        return [np.concatenate([np.asarray(part).reshape(-1, *part.shape[2:]) for part in parts])
                for parts in zip(*blocks, strict=True)]  # fmt: skip

    usual = examples({})
    assert usual[0].shape == (32, 256)
    for changes in ({"block": 2}, {"batch": 2, "segment": 4}, {"batch": 8, "segment": 1}, {"memory": 1e-6}):
        for a, b in zip(usual, examples(changes), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_stream_does_not_depend_on_the_number_of_processes(preset, tiny, tmp_path):
    """Two real ones that draw every other block, and this one that draws them all: to the bit."""
    script = Path(stream_part.__file__)
    surroundings = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    outs = [tmp_path / f"{part}.npz" for part in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, script, preset, str(part), "2", out],
            env=surroundings,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part, out in enumerate(outs)
    ]
    whole = stream_part.blocks(tiny, range(tiny.stream.blocks))
    for process in processes:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    drawn = [dict(np.load(out)) for out in outs]
    assert not drawn[0].keys() & drawn[1].keys()
    assert len(drawn[0]) == len(drawn[1])
    together = drawn[0] | drawn[1]
    assert together.keys() == whole.keys()
    for name, values in whole.items():
        assert together[name].dtype == values.dtype
        np.testing.assert_array_equal(together[name], values)


def test_only_the_segment_is_replaced_and_by_others_each_time(tiny, source):
    examples = Examples(tiny, source, 0)
    inside = range(tiny.stream.first_block(2), tiny.stream.first_block(3))
    fresh = []
    for number in range(tiny.stream.blocks):
        plain, *replaced = (
            examples.block(course, number)[0] for course in (Plain(), Replaced(2, 1), Replaced(2, 2))
        )
        for other in replaced:
            assert np.array_equal(plain, other) == (number not in inside)
        if number in inside:
            fresh += [np.asarray(image).tobytes() for block in replaced for image in block.reshape(-1, 256)]
    assert len(set(fresh)) == len(fresh) == 2 * len(inside) * tiny.stream.batch


def test_the_mix_drifts_over_all_classes():
    n = 6_200
    mix, back = Mix(16, n, False), Mix(16, n, True)
    weights = mix.weights(np.arange(n))
    assert weights.min() >= 0
    assert 1 <= weights.sum(axis=1).min() <= weights.sum(axis=1).max() <= 1 << 16
    assert (weights[0].argmax(), weights[-1].argmax()) == (0, 61)
    assert (np.diff(weights.argmax(axis=1)) >= 0).all()
    np.testing.assert_array_equal(back.weights(np.arange(n))[0], weights[-1])
    # Over the whole stream no class is left out.
    assert weights.sum(axis=0).min() > 0


class StopAfter:
    """A `Stop` that was asked once it has been looked at so many times."""

    def __init__(self, looks):
        self.looks = looks

    def __call__(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    @property
    def asked(self):
        self.looks -= 1
        return signal.SIGTERM if self.looks < 0 else None


def contents(directory):
    """Return all lines of all logs, in their order, without clock readings."""
    return {
        path.name: [log.without_times(json.loads(line)) for line in path.read_text().splitlines()]
        for path in (directory / "logs").iterdir()
    }


def resume(directory):
    for _ in range(60):
        result = invoke("run", "order", "--out", directory, "--resume")
        if result.exit_code != 143:
            break
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("looks", [9, 60, 141, 320])
def test_stopped_again_and_again_is_undisturbed(preset, directory, tmp_path, monkeypatch, looks):
    stopped = tmp_path / "stopped"
    monkeypatch.setattr(study, "Stop", StopAfter(looks))
    result = invoke("run", "order", "--preset", preset, "--out", stopped)
    assert result.exit_code == 143, result.output
    assert "--resume" in result.output
    ends = {path.name: log.read(path).end for path in (stopped / "logs").iterdir()}
    assert ends == {
        "sgd.0.jsonl": log.FINISHED if looks > 300 else "interrupted",
        "ngd.0.jsonl": "interrupted",
    }
    monkeypatch.setattr(study, "Stop", Stop)
    resume(stopped)
    assert contents(stopped) == contents(directory)
    assert {path.name for path in stopped.iterdir()} == {path.name for path in directory.iterdir()}
    assert not (stopped / "outputs").exists()


def test_killed_is_undisturbed(preset, directory, tmp_path, monkeypatch):
    """A process that just ends: a line cut short, an output and the starts of segments lost."""
    killed = tmp_path / "killed"
    monkeypatch.setattr(study, "Stop", StopAfter(100))
    assert invoke("run", "order", "--preset", preset, "--out", killed).exit_code == 143
    monkeypatch.setattr(study, "Stop", Stop)
    path = killed / "logs" / "sgd.0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[-1])["record"] == "end"
    path.write_bytes(b"".join(lines[:-1])[:-20])
    shutil.rmtree(killed / "checkpoints")
    for output in (killed / "outputs").rglob("*.npy"):
        output.write_bytes(output.read_bytes()[:-1])
    resume(killed)
    assert contents(killed) == contents(directory)


def test_a_damaged_log_is_gone_on_with_before_the_damage(directory, tmp_path):
    """Of one method the last line is not JSON though it ends as a line does, of the other one a line before."""
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    for name, place in (("ngd.0.jsonl", -1), ("sgd.0.jsonl", -3)):
        path = copy / "logs" / name
        lines = path.read_bytes().splitlines(keepends=True)
        lines[place] = b'{"record": "evalua\x00\xff\n'
        path.write_bytes(b"".join(lines))
    result = invoke("run", "order", "--out", copy, "--resume")
    assert result.exit_code == 0, result.output
    told = [line for line in result.output.splitlines() if "done again" in line]
    assert len(told) == 1
    assert f"sgd.0.jsonl: line {len(lines) - 2}: expected a JSON record, found" in told[0]
    assert contents(copy) == contents(directory)


def test_a_finished_run_is_left_alone(directory, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    result = invoke("run", "order", "--out", copy, "--resume")
    assert result.exit_code == 0
    assert "finished before" in result.output
    for path in (directory / "logs").iterdir():
        assert (copy / "logs" / path.name).read_bytes() == path.read_bytes()


def spoil(patch):
    """Let trainings see a NaN in every example."""
    draw = Examples.block

    def spoiled(self, course, number):
        inputs, labels = draw(self, course, number)
        return inputs * np.float32("nan"), labels

    patch.setattr(Examples, "block", spoiled)


def test_ten_nonfinite_steps_in_a_row_end_the_run(preset, tmp_path, monkeypatch):
    """With a sentence, an exit code, the log and a checkpoint, each seed for itself."""
    spoil(monkeypatch)
    out = tmp_path / "out"
    # Trainings of 12 updates; resumed with examples as bad as before, there is one more.
    fresh = ("--preset", preset, "--set", "stream.segments=3", "--seeds", "2")
    for steps, options in ((10, fresh), (11, ["--resume"])):
        why = f"SGD, match-2: {steps} steps in a row refused: nonfinite gradient"
        result = invoke("run", "order", *options, "--out", out)
        assert result.exit_code == 1, result.output
        for seed in (0, 1):
            assert f"natgrad: seed {seed}: {why}\n" in result.output
            for method in ("sgd", "ngd"):
                assert log.read(out / "logs" / f"{method}.{seed}.jsonl").end == why
            kept = {path.name for path in (out / "checkpoints" / f"sgd.{seed}" / "match-2").iterdir()}
            assert f"{steps:09d}" in kept
        assert why in (out / "report.html").read_text()


def test_what_was_given_up_goes_on_when_examples_are_good_again(walker, monkeypatch):
    walk, training = walker("ngd"), Training("plain", Plain(), 1.0)
    with monkeypatch.context() as patch:
        spoil(patch)
        assert walk.walk(training).refused == 8  # All there are: not ten in a row.
        patch.setattr("natgrad_paper.refusals.LIMIT", 5)
        for steps in (5, 6):
            with pytest.raises(GivenUp) as reason:
                walk.walk(training)
            assert str(reason.value) == f"NGD, plain: {steps} steps in a row refused: nonfinite gradient"
    arrived, start = walk.walk(training), walk.learner.start(0)[0]
    assert arrived.refused == 6
    for after, before in zip(*map(jax.tree.leaves, (arrived.params, start)), strict=True):
        assert np.isfinite(after).all()
        assert not np.array_equal(after, before)


def test_what_was_given_up_with_its_last_step_is_not_taken_for_an_end(walker, monkeypatch):
    walk, training = walker("sgd"), Training("plain", Plain(), 1.0)
    with monkeypatch.context() as patch:
        spoil(patch)
        patch.setattr("natgrad_paper.refusals.LIMIT", 8)
        with pytest.raises(GivenUp):
            walk.walk(training)
    with pytest.raises(GivenUp, match="SGD, plain: 8 steps in a row refused: nonfinite gradient"):
        walk.walk(training)


@dataclasses.dataclass(frozen=True)
class Always:
    """Comes to the same outcome in every step, and moves nothing."""

    outcome: ng.Outcome
    accepted: bool

    def init(self, params):
        return jnp.zeros(())

    def step(self, params, state, batch, learning_rate):
        info = SimpleNamespace(outcome=jnp.int32(self.outcome), accepted=jnp.bool_(self.accepted))
        return params, state, info


def test_refused_steps_in_a_row_end_a_training_whatever_refused_them(walker, monkeypatch):
    monkeypatch.setattr("natgrad_paper.refusals.PATIENCE", 5)
    walk, training = walker("ngd"), Training("plain", Plain(), 1.0)
    walk.learner.optimizer = Always(ng.Outcome.NO_DIRECTION, False)
    for steps in (5, 6):  # The second time it goes on from the checkpoint, with its count.
        with pytest.raises(GivenUp, match=f"NGD, plain: {steps} steps in a row refused: no direction"):
            walk.walk(training)


def test_steps_of_a_rate_that_tends_to_0_are_steps(walker, monkeypatch):
    """Taken, though the loss cannot resolve what they do: figure 2 asks for such rates."""
    monkeypatch.setattr("natgrad_paper.refusals.PATIENCE", 5)
    walk = walker("ngd")
    walk.learner.optimizer = Always(ng.Outcome.UNMEASURABLE, True)
    assert walk.walk(Training("plain", Plain(), 1e-9)).refused == 0


def test_logs_of_other_settings_are_refused(directory, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    request = json.loads((copy / "run.json").read_text())
    request["config"]["repeats"] = 3
    (copy / "run.json").write_text(json.dumps(request))
    path = copy / "logs" / "sgd.0.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    result = invoke("run", "order", "--out", copy, "--resume")
    assert result.exit_code == 2
    assert "config: expected that of the run to go on with" in result.output


def test_the_pictures_show_what_is_trained_on(tiny, source):
    def shown(pinched):
        changed = dataclasses.replace(tiny, stream=dataclasses.replace(tiny.stream, pinched=pinched))
        record = study.samples(changed, source, 0)
        stages = np.frombuffer(base64.b64decode(record["stages"]), np.uint8).reshape(record["shape"])
        # The last stage, made half as wide, is what a training sees.
        halves = stages[:, -1].reshape(-1, 16, 2, 16, 2).astype(float).sum(axis=(2, 4)).reshape(-1, 256)
        seen, labels = Examples(changed, source, 0).block(Plain(), 0)
        np.testing.assert_allclose(seen[0], halves[:4] / 1020, atol=1e-6)
        assert record["labels"][:4] == labels[0].tolist()
        return stages

    with_pinch, without = shown(True), shown(False)
    assert (with_pinch.shape[1], without.shape[1]) == (6, 5)
    np.testing.assert_array_equal(with_pinch[:, :5], without)


def test_presets_are_read():
    experiment = experiments.load("order")
    assert list(experiment.presets()) == ["smoke", "small", "medium", "paper"]
    found = {name: config.load(Config, path) for name, path in experiment.presets().items()}
    paper = found["paper"]
    assert paper.stream.updates * paper.stream.batch == 32_768_000
    assert (paper.sgd.rate, paper.ngd.rate, paper.ngd.damping) == (0.1, 0.2, 3.0)
    assert found["small"].stream.updates == 1000
