"""The known weaknesses, each shown: a test here that fails is a weakness mended, and its line in the docs goes too."""

import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from saved import IDENTITY, NEWER, Saved, bits, checkpoint, same, trained
from training.tiny import SGD, Clock, Notes, run

import natgrad as ng
from natgrad_paper.training import loop
from natgrad_paper.training.checkpoint import Checkpoints
from natgrad_paper.training.directory import Claimed
from natgrad_paper.training.log import Writer
from natgrad_paper.training.measures import Measures
from natgrad_paper.training.stopping import Signals

pytestmark = pytest.mark.usefixtures("fast_compile")

PAGE = Path(__file__).parents[2] / "docs" / "weaknesses.md"
PARAMS = jnp.array([[0.5], [-1.0]])
INPUTS = jnp.array([[1.0, 0.2], [0.3, -1.0], [-0.5, 0.7]])
TARGETS = jnp.array([[1.0], [0.0], [1.0]])


def linear(params, inputs):
    return inputs @ params


def step(opt, batch, **rest):
    return opt.step(PARAMS, opt.init(PARAMS), batch, **rest)


@pytest.fixture
def saved(tmp_path):
    return Saved.write(tmp_path)


def test_the_page_and_these_tests_name_the_same_weaknesses():
    named = re.findall(r"^- \*\*(W\d+)\*\*", PAGE.read_text(), flags=re.MULTILINE)
    shown = re.findall(r"^def test_w(\d+)_", Path(__file__).read_text(), flags=re.MULTILINE)
    assert named == [f"W{number}" for number in dict.fromkeys(shown)]


def test_w1_a_nan_of_weight_zero_refuses_the_step():
    opt = ng.natural_gradient(linear, ng.Bernoulli())
    weights = jnp.array([1.0, 1.0, 0.0])
    assert step(opt, (INPUTS, TARGETS, weights))[2].accepted
    assert not step(opt, (INPUTS.at[2, 0].set(jnp.nan), TARGETS, weights))[2].accepted


def test_w2_the_step_size_is_before_max_norm():
    free, bound = (ng.natural_gradient(linear, ng.Bernoulli(), max_norm=norm) for norm in (None, 1e-3))
    long, short = (step(opt, (INPUTS, TARGETS))[2] for opt in (free, bound))
    assert long.step_norm > 1e-3
    assert short.step_norm == pytest.approx(1e-3)
    assert short.step_size == long.step_size


def test_w3_an_infinity_the_model_swallows_is_not_seen():
    def squashed(params, inputs):
        return jnp.tanh(inputs) @ params

    batch = (INPUTS.at[0, 0].set(jnp.inf), TARGETS)
    assert step(ng.natural_gradient(squashed, ng.Bernoulli()), batch)[2].accepted
    assert "not finite" in str(ng.check(squashed, ng.Bernoulli(), PARAMS, batch))


def test_w4_a_fixed_rate_may_raise_the_loss():
    info = step(ng.natural_gradient(linear, ng.Gaussian(), learning_rate=1e3), (INPUTS, TARGETS))[2]
    assert info.new_loss > info.loss
    assert info.accepted
    careful = ng.natural_gradient(linear, ng.Gaussian(), learning_rate=1e3, reject=0.0)
    assert not step(careful, (INPUTS, TARGETS))[2].accepted


def test_w5_targets_out_of_range_are_not_seen():
    assert step(ng.natural_gradient(linear, ng.Bernoulli()), (INPUTS, 7 * TARGETS))[2].accepted
    assert "[0, 1]" in str(ng.check(linear, ng.Bernoulli(), PARAMS, (INPUTS, 7 * TARGETS)))


def test_w6_programs_grow_with_the_number_of_arrays():
    def model(params, inputs):
        return sum(inputs @ leaf for leaf in params)

    def size(leaves):
        opt, params = ng.natural_gradient(model, ng.Bernoulli()), [PARAMS] * leaves
        return len(str(jax.make_jaxpr(opt.step)(params, opt.init(params), (INPUTS, TARGETS))))

    assert size(20) > 1.5 * size(2)


def test_w7_on_other_data_the_loss_may_rise():
    opt = ng.natural_gradient(linear, ng.Bernoulli(), search=ng.LineSearch())
    moved, _, info = step(opt, (INPUTS, TARGETS))
    assert info.new_loss < info.loss
    before, after = (
        jnp.mean(ng.Bernoulli().nll(linear(params, INPUTS), 1 - TARGETS)) for params in (PARAMS, moved)
    )
    assert after > before


def test_w8_the_first_damping_has_a_unit():
    opt = ng.natural_gradient(linear, ng.Gaussian(scale=1e8))
    _, state, info = step(opt, (INPUTS, TARGETS))
    assert ng.Outcome.name_of(info.outcome) == "unmeasurable"
    assert state.damping < opt.damping.initial


def test_w10_elsewhere_a_run_goes_on_with_a_warning(saved):
    told = []
    elsewhere = replace(saved.checkpoints, surroundings={"cores": 64})
    assert same(elsewhere.load(trained(0.0), told.append), NEWER)
    assert "written with cores 2, now 64: the last digits may differ" in told[0]


def test_w12_a_second_signal_ends_at_once():
    with Signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_w13_a_forged_checkpoint_is_believed(saved):
    """Somebody else's arrays under this training's name."""
    forged = Checkpoints(saved.checkpoints.directory, IDENTITY, {"cores": 2})
    params, state = trained(666.0)
    forged.save(replace(checkpoint(NEWER), trained=(params, state)))
    found, told = saved.load()
    assert told == []
    assert bits(found.trained) == bits((params, state)) != bits(checkpoint(NEWER).trained)


def test_w14_where_the_system_has_no_locks_nobody_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with Claimed(tmp_path), Claimed(tmp_path):
        pass


def damaged(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_w15_a_damaged_log_is_not_mended(tmp_path):
    path = tmp_path / "logs" / "ngd.0.jsonl"
    with Writer(path, {"seed": 0}) as log:
        log.write({"record": "step", "iteration": 1})
        mark = log.mark
    assert mark.fits(path)
    damaged(path, 5)
    assert not mark.fits(path)


def test_w15_of_order_what_was_measured_after_the_damage_is_measured_again(tmp_path):
    def measures(display=None):
        return Measures(run(tmp_path, [SGD], resume=True, display=display), SGD, 0)

    names = ("first", "second", "third")
    path, first = tmp_path / "logs" / "sgd.0.jsonl", measures()
    for name in names:
        first.write(name, variance=0.5)
    whole = path.read_bytes()
    damaged(path, whole.index(b'"second"'))
    display = Notes()
    again = measures(display)
    assert [again.get(name) is not None for name in names] == [True, False, False]
    assert display.told == [f"{path}: damaged: what was measured from there on is measured again"]
    for name in names[1:]:
        again.write(name, variance=0.5)
    assert path.read_bytes() == whole
    damaged(path, 0)
    assert measures().get("first") is None


def test_w16_a_short_pause_counts_as_training(monkeypatch):
    """Shorter than five seconds, or than ten times the processor time of the call that it falls into."""
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    for pause, work, seen in ((4.0, 0.0, 0.0), (6.0, 1.0, 0.0), (6.0, 0.1, 6.0)):
        watch = loop.Stopwatch()
        with watch:
            clock.move(pause + work, work)
        assert watch.woken() == pytest.approx(seen)
        assert watch.seconds == pytest.approx(pause + work - seen)
