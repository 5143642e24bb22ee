"""Figure 2's protocol: the numbers it always gave, those of a plain re-implementation, however often it is stopped."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from training.tiny import Notes, contents

from figures import order_plain, order_run, stream_part
from figures.runs import conduct, invoke, method, run, settings
from natgrad_paper import figures
from natgrad_paper.data import characters, glyphs
from natgrad_paper.figures.order import numbers, protocol
from natgrad_paper.figures.order.problem import Settings
from natgrad_paper.figures.order.streams import Drifting, Examples, Mix, Plain, Replaced
from natgrad_paper.report import load
from natgrad_paper.training import log
from natgrad_paper.training.problem import Until
from natgrad_paper.training.runner import Training
from natgrad_paper.training.stopping import Stopped

pytestmark = pytest.mark.usefixtures("fast_compile")

GOLDEN = json.loads(Path(__file__).with_name("golden_order.json").read_text())
FLAGS = ("avx", "avx2", "avx512f", "fma")
TINY = (
    "validation=40", "held_out=10", "stream.batch=4", "stream.segment=2", "stream.block=1", "stream.segments=2",
    "model.hidden=3", "sgd.rate=2.0", "ngd.rate=6.0", "ngd.damping=1.0", "ngd.maxiter=40", "ngd.rtol=1e-6",
    "match.tolerance=0.001", "match.trainings=2", "limit.factors=[0.5]", "drift.width=8",
)  # fmt: skip


def machine():
    """Return what the last bits of a sum depend on, as the golden file says it."""
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        words = []
    return f"{' '.join(flag for flag in FLAGS if flag in words)}, jaxlib {jaxlib.__version__}"


@pytest.mark.parametrize("golden", GOLDEN["runs"], ids=["smoke", "with matching"])
def test_the_numbers_are_those_of_the_first_implementation(golden, tmp_path):
    """To the bit where sums are computed alike; elsewhere to rounding."""
    script, out = Path(order_run.__file__), tmp_path / "found.json"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    words = [sys.executable, script, out, str(golden["seeds"]), *golden["changes"]]
    done = subprocess.run(words, env=plain, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(out.read_text()), golden["found"]
    if machine() == GOLDEN["machine"]:
        assert found == expected
        return
    assert {where: set(each) for where, each in found.items()} == {
        where: set(each) for where, each in expected.items()
    }
    for where, each in expected.items():
        for name, facts in each.items():
            for field, value in facts.items():
                one = found[where][name][field]
                if "variance" in field:
                    assert float.fromhex(one) == pytest.approx(float.fromhex(value), rel=1e-3)
                else:
                    assert one == pytest.approx(value, abs=0.02)


@pytest.fixture(scope="module")
def tiny():
    return settings("order", *TINY)


@pytest.fixture(scope="module")
def problem(tiny):
    return figures.load("order").prepare(tiny, None)


@pytest.fixture(scope="module")
def order(tiny, problem, fast_compile):
    """A run of the tiny protocol: all such runs share their compiled programs."""
    return partial(run, "order", chosen=tiny, problem=problem, _trainers={})


@pytest.fixture(scope="module")
def directory(order, tmp_path_factory):
    directory = tmp_path_factory.mktemp("order")
    display = Notes()
    assert conduct(order(directory, display=display)) == []
    assert "SGD, seed 0: segment-01, variance of the outputs" in display.told[0]
    return directory


@pytest.fixture(scope="module")
def runs(directory):
    return load.read(directory)


@pytest.fixture(scope="module")
def draw(problem):
    @cache
    def stream(number):
        indices = jnp.arange(64, dtype=jnp.uint32)
        inputs, labels = characters.draw(problem.glyphs, characters.stream(0, number), indices, side=16)
        return np.asarray(inputs, np.float64), np.asarray(labels)

    return lambda number, k: (stream(number)[0][k], stream(number)[1][k])


@pytest.mark.parametrize(("name", "damping"), [("sgd", None), ("ngd", 1.0)])
@pytest.mark.parametrize("segment", [1, 2])
def test_variance_is_that_of_plain_trainings(tiny, runs, draw, name, damping, segment):
    held_out = np.stack([draw(2, k)[0] for k in range(tiny.held_out)])
    rate = numbers.measures(runs, "matched", "name").set_index("method")["rate"][name]
    expected = order_plain.variance(tiny, 0, rate, damping, draw, segment, held_out)
    assert expected > 1e-8
    found = numbers.along(numbers.measures(runs, "segment"), name, "segment")
    np.testing.assert_allclose(found[segment][0], expected, rtol=5e-3)


def test_every_part_is_in_the_logs(tiny, runs):
    assert all(each.done for each in runs.logs)
    trainings = numbers.trainings(runs)
    for name in ("sgd", "ngd"):
        own = trainings[trainings["method"] == name]
        assert (own["kind"] == "segment").sum() == tiny.repeats * tiny.stream.segments
        assert (own["kind"] == "limit").sum() == tiny.repeats
        assert list(numbers.limit(runs, name)) == [1.0, 0.5]
        assert own["refused"].sum() == 0
        for traced in (protocol.UNPERTURBED, protocol.FORWARDS, protocol.BACKWARDS):
            (found,) = runs.method(name, traced)
            assert [each["iteration"] for each in found.evaluations] == [0, 2, 4, 6, 8]
        (measures,) = runs.method(name)
        assert [each["name"] for each in measures.measures] == [
            "matched", "segment-01", "segment-02", "limit-0.5", "drift"
        ]  # fmt: skip
    # One of many alike logs no steps.
    assert [
        bool(each.steps) for each in runs.trainings("sgd") if each.training in ("unperturbed", "segment-01-1")
    ] == [
        False,
        True,
    ]


def test_only_named_segments_are_replaced_with_the_same_numbers(problem, runs, fast_compile, tmp_path):
    chosen = settings("order", *TINY, "replaced=[2]", "limit.factors=[]")
    assert conduct(run("order", tmp_path, chosen=chosen, problem=problem)) == []
    found = load.read(tmp_path)
    for name in ("sgd", "ngd"):
        (measures,) = found.method(name)
        assert [each["name"] for each in measures.measures] == ["matched", "segment-02", "drift"]
        one, whole = (
            numbers.along(numbers.measures(each, "segment"), name, "segment") for each in (found, runs)
        )
        assert one[2].tolist() == whole[2].tolist()


def test_updates_that_are_shared_count_once(tiny, runs):
    trainings = numbers.trainings(runs, "segment").set_index("training")
    assert trainings["made"]["segment-01-1"].tolist() == [8, 8]
    assert trainings["made"]["segment-02-1"].tolist() == [6, 6]


def test_the_matched_rate_is_the_best_of_those_tried(runs):
    tried, matched = (
        numbers.trainings(runs, "match"),
        numbers.measures(runs, "matched", "name").set_index("method"),
    )
    starts = tried.sort_values("rate").groupby("method").last()
    assert starts["rate"].to_dict() == {"sgd": 2.0, "ngd": 6.0}
    target = starts["error"].max()
    unperturbed = numbers.trainings(runs, "unperturbed").set_index("method")["error"]
    for name in ("sgd", "ngd"):
        own = tried[tried["method"] == name].set_index("rate")["error"]
        best = own[matched["rate"][name]]
        assert abs(best - target) == (own - target).abs().min()
        assert unperturbed[name] == best


def outputs(order, directory, name, source, rate, start=None):
    """Train on a source; return the outputs of the trained model, and where it stood at the start of segment 2."""
    whole = order(directory)
    examples = Examples(whole.settings, whole.problem.glyphs, 0)
    each = protocol.MethodRun(whole, method("order", name), 0, examples, None)
    training = Training(
        each.method, 0, f"{rate}-{source.__name__}-{start is None}", {}, source(examples), start,
        Until(whole.settings.stream.updates), each.training("", None, rate, kind="").change, each.outputs,
    )  # fmt: skip
    kept = {}

    def watch(event):
        kept[event.position.iteration] = (event.position, *jax.tree.map(jnp.copy, event.trained))

    whole.train(training, watch)
    return whole.outputs(training), kept[whole.settings.stream.start(2)]


def replaced(examples):
    return Replaced(examples, 2, 1)


@pytest.mark.parametrize("name", ["sgd", "ngd"])
def test_joining_in_is_training_from_scratch_to_the_bit(order, tmp_path, name):
    unperturbed, start = outputs(order, tmp_path, name, Plain, 1.0)
    joined, _ = outputs(order, tmp_path, name, replaced, 1.0, start)
    whole, _ = outputs(order, tmp_path, name, replaced, 1.0)
    np.testing.assert_array_equal(joined, whole)
    assert not np.array_equal(joined, unperturbed)


def test_without_a_rate_nothing_varies(order, tmp_path):
    found = [outputs(order, tmp_path, "sgd", source, 0.0)[0] for source in (Plain, replaced)]
    assert protocol.variances(np.stack(found)) == {"variance": 0.0, "logit_variance": 0.0}


def test_variances_of_known_outputs():
    logits = np.log(np.array([[[0.5, 0.5]], [[0.25, 0.75]]]))
    found = protocol.variances(logits + 7)
    np.testing.assert_allclose(found["variance"], 0.25**2 / 2)
    np.testing.assert_allclose(found["logit_variance"], (np.log(3) / 2) ** 2 / 2)


def test_another_rate_compiles_nothing(order, compilations, tmp_path):
    for name in ("sgd", "ngd"):
        outputs(order, tmp_path / "first", name, Plain, 0.5)
        with compilations() as count:
            outputs(order, tmp_path / "second", name, Plain, 0.25)
            assert count() == 0


@pytest.mark.parametrize(
    "source", [Plain, partial(Replaced, segment=2, repeat=2), Drifting, partial(Drifting, backwards=True)]
)
def test_the_stream_does_not_depend_on_batches_blocks_or_memory(problem, source):
    def examples(*changes):
        changed = settings("order", *TINY, *changes)
        found = source(Examples(changed, problem.glyphs, 0))
        size = changed.stream.block
        firsts = reversed(range(0, changed.stream.updates, size))
        blocks = [found.block(first, size) for first in firsts][::-1]
        return [np.concatenate([np.asarray(part).reshape(-1, *part.shape[2:]) for part in parts])
                for parts in zip(*blocks, strict=True)]  # fmt: skip

    usual = examples()
    assert usual[0].shape == (32, 256)
    for changes in (
        ["stream.block=2"],
        ["stream.batch=2", "stream.segment=4"],
        ["stream.batch=8", "stream.segment=1"],
        ["stream.memory=1e-6"],
    ):
        for a, b in zip(usual, examples(*changes), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_block_may_begin_inside_one_that_is_kept(problem):
    found = Plain(Examples(settings("order", *TINY, "stream.segment=4", "stream.block=4"), problem.glyphs, 0))
    whole = found.block(4, 4)
    assert (found.same(4), found.same(6)) == (4, 2)
    for part, rest in zip(whole, found.block(6, 2), strict=True):
        np.testing.assert_array_equal(part[2:], rest)


def test_the_stream_does_not_depend_on_the_number_of_processes(tiny, tmp_path):
    """Two real ones that draw every other block, and this one that draws them all: to the bit."""
    script = Path(stream_part.__file__)
    surroundings = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    outs = [tmp_path / f"{part}.npz" for part in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(part), "2", out, *TINY],
            env=surroundings,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part, out in enumerate(outs)
    ]
    whole = stream_part.blocks(tiny, range(tiny.stream.updates // tiny.stream.block))
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


def test_only_the_segment_is_replaced_and_by_others_each_time(tiny, problem):
    examples = Examples(tiny, problem.glyphs, 0)
    inside = range(tiny.stream.start(2), tiny.stream.start(3))
    fresh = []
    for update in range(tiny.stream.updates):
        sources = Plain(examples), Replaced(examples, 2, 1), Replaced(examples, 2, 2)
        plain, *replaced = (source.block(update, 1)[0] for source in sources)
        for other in replaced:
            assert np.array_equal(plain, other) == (update not in inside)
        if update in inside:
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


PLACES = [("SGD, seed 0, match-2", 3), ("SGD, seed 0, unperturbed", 5), ("NGD, seed 0, segment-02-2", 7),
          ("NGD, seed 0, drift-backwards", 2)]  # fmt: skip


def interrupt(order, directory, title, iteration):
    """Run until a training has come so far, and there ask for an end."""
    whole = order(directory, display=Notes(title, iteration, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(Stopped):
        conduct(whole)


@pytest.mark.parametrize(("title", "iteration"), PLACES)
def test_stopped_and_resumed_is_undisturbed(order, directory, tmp_path, title, iteration):
    interrupt(order, tmp_path, title, iteration)
    assert conduct(order(tmp_path, resume=True)) == []
    assert contents(tmp_path) == contents(directory)
    assert not (tmp_path / "outputs").exists()
    assert not (tmp_path / "checkpoints").exists()


def test_killed_is_undisturbed(order, directory, tmp_path):
    """A process that just ends: a line cut short, outputs damaged and the starts of segments lost."""
    interrupt(order, tmp_path, "SGD, seed 0, segment-02-2", 5)
    path = tmp_path / "logs" / "sgd.0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    shutil.rmtree(tmp_path / "checkpoints")
    damaged = list((tmp_path / "outputs").glob("*.npy"))
    assert damaged
    for output in damaged:
        output.write_bytes(output.read_bytes()[:-1])
    assert conduct(order(tmp_path, resume=True)) == []
    found, expected = contents(tmp_path), contents(directory)
    assert found["sgd.0.jsonl"] == expected["sgd.0.jsonl"]
    # What joined in before now comes from scratch: the same end, and a few more records on the way.
    assert {name: records[-1] for name, records in found.items()} == {
        name: records[-1] for name, records in expected.items()
    }


def test_a_damaged_log_of_measures_is_gone_on_with_before_the_damage(order, directory, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    path = copy / "logs" / "sgd.0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[-3] = b'{"record": "meas\x00\xff\n'
    path.write_bytes(b"".join(lines))
    display = Notes()
    assert conduct(order(copy, resume=True, display=display)) == []
    assert any("measured again" in sentence for sentence in display.told)
    assert contents(copy)["sgd.0.jsonl"] == contents(directory)["sgd.0.jsonl"]


def test_a_finished_run_is_left_alone(order, directory, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    display = Notes()
    assert conduct(order(copy, resume=True, display=display)) == []
    assert display.skipped == ["seed 0"]
    for path in (directory / "logs").iterdir():
        assert (copy / "logs" / path.name).read_bytes() == path.read_bytes()


def test_trainings_that_meet_only_bad_numbers_are_given_up_seed_by_seed(order, tmp_path, monkeypatch):
    block = Examples._block

    def spoiled(self, *where):
        inputs, labels = block(self, *where)
        return inputs * np.float32("nan"), labels

    monkeypatch.setattr(Examples, "_block", spoiled)
    monkeypatch.setattr("natgrad_paper.training.stopping.LIMIT", 5)
    why = "SGD, match-2: 5 steps in a row refused: nonfinite gradient"
    assert conduct(order(tmp_path, seeds=(0, 1))) == [f"seed {seed}: {why}" for seed in (0, 1)]
    found = log.read(tmp_path / "logs" / "sgd.1.match-2.jsonl")
    assert found.status is log.Status.GAVE_UP
    monkeypatch.undo()
    # When examples are good again, the training goes on from where it was given up.
    assert conduct(order(tmp_path, seeds=(0, 1), resume=True)) == []
    assert log.read(tmp_path / "logs" / "sgd.1.match-2.jsonl").evaluations[-1]["refused"] == 5


def test_the_pictures_show_what_is_trained_on(tiny, problem):
    def shown(pinched):
        record = protocol.shown(problem.glyphs, 0, pinched)
        stages = np.frombuffer(base64.b64decode(record["images"]), np.uint8).reshape(record["shape"])
        assert record["labels"] == list(characters.STAGES[: len(stages)])
        # The last stage, made half as wide, is what a training sees.
        halves = stages[-1].reshape(-1, 16, 2, 16, 2).astype(float).sum(axis=(2, 4)).reshape(-1, 256)
        changed = settings("order", *TINY, f"stream.pinched={str(pinched).lower()}")
        seen, labels = Plain(Examples(changed, problem.glyphs, 0)).block(0, 1)
        np.testing.assert_allclose(seen[0], halves[:4] / 1020, atol=1e-6)
        names = record["title"].split(": ")[1].split()
        assert names[:4] == [glyphs.CHARACTERS[label] for label in labels[0]]
        return stages

    with_pinch, without = shown(True), shown(False)
    assert (len(with_pinch), len(without)) == (6, 5)
    np.testing.assert_array_equal(with_pinch[:5], without)


def bad_source(path):
    labels = np.arange(62)
    np.savez(path, images=np.ones((62, 32, 32), np.uint8), labels=np.where(labels == 7, 99, labels))
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "{bad}"], "labels: expected whole numbers 0 to 61"),
        (["--methods", "sgd"], "--methods: expected all of sgd, ngd"),
        (["--set", "stream.block=7"], "stream.block: expected a divisor of segment = 4, found 7"),
        (["--set", "limit.segment=11"], "limit.segment: expected at most stream.segments = 3, found 11"),
        (["--set", "limit.factors=[0.1, 0.5]"], "falling numbers between 0 and 1"),
        (
            ["--set", "replaced=[1, 4]"],
            "replaced: expected rising numbers, at most stream.segments = 3, found [1, 4]",
        ),
        (["--set", "replaced=[2, 1]"], "replaced: expected rising numbers"),
        (["--set", "replaced=[2, 3]"], "limit.segment: expected one of replaced = [2, 3], found 1"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, arguments, words):
    names = {"bad": bad_source(tmp_path / "glyphs.npz")}
    out = tmp_path / "out"
    given = [word.format(**names) for word in arguments]
    result = invoke("run", "order", "--preset", "smoke", *given, "--out", out)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
    assert len(result.output.strip().splitlines()) == 1
    assert not out.exists()


def test_the_cost_is_said_in_words():
    cost = figures.load("order").cost(settings("order", preset="small"), 2, 2)
    assert cost.startswith("2 methods × 2 seeds × 62 trainings of 1000 updates")
    assert cost.endswith("about 30 min on two cores")
    some = settings("order", "replaced=[1, 5, 10]", "limit.factors=[]", preset="small")
    assert "× 17 trainings" in figures.load("order").cost(some, 2, 2)
    assert Settings().stream.updates == 1000
