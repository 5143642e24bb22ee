"""The arena: each of its ten problems is right, and all of them run, resume and make one page."""

import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from picture_files import write_idx
from scipy import stats
from training.tiny import Notes

from figures.runs import conduct, invoke, method, run, settings
from natgrad_paper import figures
from natgrad_paper.data import bundled, idx_file
from natgrad_paper.errors import UserError
from natgrad_paper.figures.arena import control, images, likelihoods, measured, nets, science, sequences
from natgrad_paper.figures.arena.form import VARIANTS, Form
from natgrad_paper.figures.arena.methods import METHODS, UNTUNED, constants, peer, schedule
from natgrad_paper.figures.arena.problems import PROBLEMS, prepare
from natgrad_paper.training import log
from natgrad_paper.training.baselines import FirstOrder
from natgrad_paper.training.source import Placed

pytestmark = pytest.mark.usefixtures("fast_compile")
FORMS = [(name, variant) for name, posed in PROBLEMS.items() for variant in ("plain", *posed.variants)]


@pytest.fixture(autouse=True)
def _optax_promotes():
    with jax.numpy_dtype_promotion("standard"):
        yield


def made(name, variant="plain"):
    """Return a problem with few cases."""
    return PROBLEMS[name].make(Form(variant, train=12, test=6, batch=8), None)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize(("name", "variant"), FORMS)
def test_a_problem_is_a_pure_function_of_its_seed_and_can_be_learned(name, variant):
    problem = made(name, variant)
    assert problem.data == made(name, variant).data
    assert (problem.variant, problem.float64) == (variant, variant == "float64" or name == "pinn")
    kind = np.float64 if problem.float64 else np.float32
    first, again, other = (problem.init(seed) for seed in (0, 0, 1))
    assert {leaf.dtype for leaf in leaves(first)} == {np.dtype(kind)}
    assert all(map(np.array_equal, leaves(first), leaves(again)))
    assert not all(map(np.array_equal, leaves(first), leaves(other)))

    source = Placed(problem).source(UNTUNED[0], None, 0)
    row = jax.tree.map(lambda rows: rows[0], source.block(5, 1))
    batch = source.arguments(source.data, row, first)["batch"]
    for one, two in zip(
        leaves(batch), leaves(source.arguments(source.data, row, first)["batch"]), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    floats = {leaf.dtype for leaf in leaves(batch) if leaf.dtype.kind == "f"}
    assert floats <= {np.dtype(kind)}
    rule = FirstOrder(problem.model, problem.likelihood, Slope(), objective=problem.objective)
    slope, _, info = rule.step(first, rule.init(first), batch)
    assert np.isfinite(info.loss)
    assert info.loss.dtype == kind
    moved = [np.abs(a - b).max() for a, b in zip(leaves(slope), leaves(first), strict=True)]
    assert np.isfinite(moved).all()
    assert max(moved) > 0

    for prefix, cases in source.judged().items():
        errors = problem.errors(first, *cases)["error"]
        assert errors.shape == (len(leaves(cases)[0]),), prefix
        assert np.isfinite(errors).all()


class Slope:
    """An optax transformation that adds the gradient."""

    def init(self, params):
        return ()

    def update(self, updates, state, params=None):
        return updates, state


def test_variants_change_what_they_say():
    plain = {name: made(name) for name in ("digits", "linear", "regression")}
    scaled = made("linear", "inputs").train[0] / plain["linear"].train[0]
    np.testing.assert_allclose(scaled, np.tile(np.resize([0.01, 0.1, 1, 10, 100], 32), (12, 1)), rtol=1e-5)
    np.testing.assert_array_equal(made("linear", "inputs").train[1], plain["linear"].train[1])
    np.testing.assert_allclose(
        made("regression", "targets").train[1], 10 * plain["regression"].train[1], rtol=1e-6
    )
    assert [
        PROBLEMS["digits"].make(Form(each), None).batches.gradient.size for each in ("plain", "batch")
    ] == [256, 64]
    assert made("digits", "float64").train[0].dtype == np.float64
    assert {each for posed in PROBLEMS.values() for each in posed.variants} == set(VARIANTS) - {"plain"}


def test_whole_problems_have_the_sizes_of_the_suite():
    whole = {entry.name: entry for entry in prepare(settings("arena", preset="small"), None).entries}
    assert tuple(whole) == measured.NAMES
    shapes = {name: (entry.data["train"][0], entry.data["test"][0]) for name, entry in whole.items()}
    assert shapes["digits"] == shapes["vae"] == shapes["conv"] == (1437, 360)
    assert (shapes["lstm"], shapes["curves"], shapes["linear"]) == (
        (10_000, 2000),
        (4000, 1000),
        (5000, 1000),
    )
    assert shapes["regression"] == (4500, 942)
    sizes = {name: sum(leaf.size for leaf in leaves(entry.init(0))) for name, entry in whole.items()}
    assert (sizes["digits"], sizes["pinn"], sizes["cartpole"], sizes["linear"]) == (50_826, 257, 226, 8192)
    inputs = whole["linear"].train[0].astype(np.float64)
    assert np.linalg.cond(inputs.T @ inputs / len(inputs)) == pytest.approx(1e6, rel=0.3)
    assert not whole["conv"].looped


def test_training_and_test_cases_differ():
    for name in ("digits", "lstm", "transformer", "regression", "linear", "curves", "cartpole"):
        problem = made(name)
        train, test = (
            {row.tobytes() for row in leaves(part[0])[0]} for part in (problem.train, problem.test)
        )
        assert not train & test, name


def test_normal_numbers_are_scipys():
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(5, 6)), rng.normal(size=(5, 3))
    found = likelihoods.normal_mean_scale().nll(jnp.asarray(outputs), jnp.asarray(targets))
    expected = -stats.norm(outputs[:, :3], np.exp(outputs[:, 3:])).logpdf(targets).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    other = jnp.asarray(rng.normal(size=(5, 6)))
    draws = jnp.asarray(
        outputs[:, None, :3] + np.exp(outputs[:, None, 3:]) * rng.normal(size=(5, 200_000, 3))
    )
    wide = lambda each: jnp.broadcast_to(each[:, None], (5, 200_000, 6))  # noqa: E731
    nll = likelihoods.normal_mean_scale().nll
    ratio = nll(wide(other), draws) - nll(wide(jnp.asarray(outputs)), draws)
    divergence = likelihoods.divergence(jnp.asarray(outputs), other)
    np.testing.assert_allclose(divergence, ratio.mean(axis=1), rtol=0.05)


def test_the_noise_of_the_autoencoder_is_the_steps_own():
    problem = made("vae")
    params, batch = problem.init(0), jax.tree.map(jnp.asarray, problem.train)
    one, two = (problem.draw(jax.random.key(seed), params, batch) for seed in (0, 1))
    np.testing.assert_array_equal(one[0][0], batch[0][0])
    assert not np.array_equal(one[0][1], two[0][1])
    assert one[0][1].shape == (12, images.CODE)
    error = problem.errors(params, *batch)["error"]
    pixels, code = problem.model(params, batch[0])
    bernoulli = jnp.sum(jnp.logaddexp(0, pixels) - batch[1][0] * pixels, axis=1)
    mean, log_scale = code[:, : images.CODE], code[:, images.CODE :]
    prior = 0.5 * jnp.sum(jnp.exp(2 * log_scale) + mean**2 - 1 - 2 * log_scale, axis=1)
    np.testing.assert_allclose(error, bernoulli + prior, rtol=1e-4)


def test_the_sum_of_the_marked_numbers():
    inputs, sums = sequences.additions(Form(), 0, 50)
    for (values, marks), answer in zip(inputs.swapaxes(1, 2), sums, strict=True):
        assert answer == pytest.approx(values[marks == 1].sum(), rel=1e-5)
        early, late = np.flatnonzero(marks)
        assert early < sequences.TICKS // 2 <= late


def test_the_transformer_does_not_see_what_comes_later():
    problem = made("transformer")
    params, tokens = problem.init(0), jnp.asarray(problem.train[0][:2])
    later = tokens.at[:, 40:].set(0)
    before, after = nets.transformer(params, tokens), nets.transformer(params, later)
    np.testing.assert_allclose(before[:, :40], after[:, :40], atol=1e-4)
    assert np.abs(before - after)[:, 40:].max() > 0.01
    np.testing.assert_array_equal(problem.train[0][:, 1:], problem.train[1][:, :-1])
    uniform = np.log(before.shape[-1])
    assert (
        float(problem.errors(params, tokens, jnp.asarray(problem.train[1][:2]))["error"].mean()) < 3 * uniform
    )


def test_the_lstm_remembers():
    params = nets.lstm_init(jax.random.key(0), 2, np.float32)
    inputs = jnp.asarray(sequences.additions(Form(), 0, 3)[0])
    hidden, cell = np.zeros((3, 64)), np.zeros((3, 64))
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    for now in np.asarray(inputs, np.float64).swapaxes(0, 1):
        i, f, g, o = np.split(
            now @ np.asarray(params["wx"]) + hidden @ np.asarray(params["wh"]) + params["b"], 4, axis=1
        )
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
    expected = hidden @ np.asarray(params["out"]["w"]) + params["out"]["b"]
    np.testing.assert_allclose(nets.lstm(params, inputs), expected, atol=1e-5)


def test_the_equation_is_poissons():
    problem = science.pinn(Form(), None)
    (inside, edge), (force, zero) = problem.train
    assert (((edge == 0) | (edge == 1)).any(axis=1)).all()
    assert {tuple(side) for side in np.c_[edge == 0, edge == 1].astype(int)} >= {(1, 0, 0, 0), (0, 0, 0, 1)}
    assert not zero.any()
    np.testing.assert_allclose(force[:, 0], -2 * np.pi**2 * science.solution(inside))
    params, h = problem.init(0), 1e-4

    def u(points):
        return np.asarray(nets.mlp(jnp.tanh, params, jnp.asarray(points)))[:, 0]

    around = sum(u(inside[:9] + h * np.array(step)) for step in ((1, 0), (-1, 0), (0, 1), (0, -1)))
    expected = (around - 4 * u(inside[:9])) / h**2
    np.testing.assert_allclose(problem.model(params, (inside[:9], edge))[0][:, 0], expected, atol=1e-5)
    nothing = jax.tree.map(jnp.zeros_like, params)
    np.testing.assert_allclose(problem.errors(nothing, *problem.judged)["error"], [1.0])
    grids = [leaves(part)[0] for part in (problem.judged, problem.test, problem.valid)]
    assert all(grid.min() >= 0 and grid.max() <= 1 for grid in grids)
    assert problem.train[0][0].dtype == np.float64


def test_the_cart_obeys_the_published_physics():
    """CartPole as Gym has it, written out once more."""
    rng = np.random.default_rng(0)
    for state in rng.normal(size=(20, 4)) * 0.2:
        for action in (0, 1):
            x, v, theta, omega = state
            force, cosine, sine = (10.0 if action else -10.0), np.cos(theta), np.sin(theta)
            temp = (force + 0.05 * omega**2 * sine) / 1.1
            theta_acc = (9.8 * sine - cosine * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
            x_acc = temp - 0.05 * theta_acc * cosine / 1.1
            expected = [x + 0.02 * v, v + 0.02 * x_acc, theta + 0.02 * omega, omega + 0.02 * theta_acc]
            np.testing.assert_allclose(
                control.moved(jnp.asarray(state), jnp.asarray(action)), expected, rtol=1e-10
            )


def test_advantages_by_hand():
    """Two episodes, of three ticks and of one: returns 3, 2, 1 and 1; above the mean of each tick: 1, 0, 0 and −1."""
    alive = jnp.asarray([[True, True], [True, False], [True, False]])
    found = control.advantages(alive, jnp.float64)
    raw = np.array([[1.0, -1.0], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(found, raw / np.sqrt(2 / 4), rtol=1e-6)


def test_episodes_depend_on_the_key_and_on_the_policy():
    problem = made("cartpole")
    params = problem.init(0)
    seen, (actions, above), weights = problem.draw(jax.random.key(0), params, None)
    assert seen.shape == (8 * control.TICKS, 4)
    assert set(np.unique(actions)) <= {0, 1}
    assert set(np.unique(weights)) == {0, 1}
    assert not np.asarray(above)[np.asarray(weights) == 0].any()
    assert not np.array_equal(weights, problem.draw(jax.random.key(1), params, None)[2])
    right = jax.tree.map(jnp.zeros_like, params)
    right[-1]["b"] = jnp.array([-9.0, 9.0], jnp.float32)
    length = control.TICKS - problem.errors(right, *problem.train)["error"]
    assert (length < 15).all()  # Pushing right alone, the pole falls.


def test_pictures_of_the_user_take_the_place_of_digits(tmp_path):
    folder = write_idx(tmp_path / "mine")
    for part, count in (("train", 9), ("test", 4)):
        raw = struct.pack(">2I", 0x801, count) + bytes(range(count))
        (folder / idx_file.LABELS[part]).write_bytes(raw)
    problem = images.conv(Form(), folder)
    assert problem.data["name"] == "pictures of mine"
    assert problem.train[0].shape == (9, 6, 6)
    np.testing.assert_array_equal(problem.train[1], np.arange(9))
    assert "in place of MNIST" in images.conv(Form(), None).data["name"]
    (folder / idx_file.LABELS["test"]).write_bytes(struct.pack(">2I", 0x801, 4) + bytes([1, 2, 3, 10]))
    with pytest.raises(UserError, match=r"t10k-labels.*labels below 10, found 10"):
        images.conv(Form(), folder)
    (folder / idx_file.LABELS["test"]).write_bytes(struct.pack(">2I", 0x801, 3) + bytes(3))
    with pytest.raises(UserError, match="4 labels, one for each picture, found 3"):
        images.conv(Form(), folder)


def test_without_scikit_learn_it_is_one_line(monkeypatch):
    monkeypatch.setattr(bundled, "PACKAGE", "no_such_package")
    for data in (bundled.digit_images, bundled.regressions, bundled.descriptions):
        with pytest.raises(UserError, match="pip install scikit-learn"):
            data()


def test_methods_are_those_of_the_suite():
    names = [each.name for each in METHODS]
    assert names[:6] == ["kncg", "adamw", "schedule-free", "prodigy", "dowg", "muon"]
    assert {"adamw-tuned", "muon-tuned"} <= set(names)
    chosen = settings("arena", preset="small")
    assert (chosen.adamw.rate, chosen.schedule_free.rate, chosen.schedule_free.warmup) == (1e-3, 2.5e-3, 100)
    assert (chosen.prodigy.rate, chosen.muon.rate) == (1.0, 0.02)
    assert constants(METHODS[0], chosen, "digits") is None


def test_a_package_that_cannot_be_imported_is_one_line():
    with pytest.raises(
        UserError, match="no_such_package: expected a package that can be imported, found: No module"
    ):
        peer("no_such_package")


def test_a_tuned_rate_is_constant_or_rises_and_falls():
    assert schedule(measured.Tuned(rate=0.01)) == 0.01
    rate = schedule(measured.Tuned(rate=0.01, steps=200))
    assert [float(rate(step)) for step in (0, 5, 10)] == pytest.approx([0, 0.005, 0.01])
    assert float(rate(200)) == pytest.approx(0, abs=1e-9)


def test_a_target_is_for_the_data_it_was_measured_on():
    target = measured.Target(error=0.5, data="a" * 64)
    assert (target.on("a" * 64), target.on("b" * 64), measured.Target().on("")) == (0.5, None, None)
    for section, found in measured.contents().items():
        assert set(found) <= set(measured.NAMES), section


def test_tuned_methods_wait_for_their_rates(tmp_path):
    display = Notes()
    given = {"methods": ["adamw-tuned", "adamw"], "display": display}
    changes = ('problems=["linear","pinn"]', "tuned_adamw.linear.rate=0.01", "tuned_adamw.linear.steps=9")
    if constants(method("arena", "adamw-tuned"), settings("arena"), "pinn").rate is not None:
        pytest.skip("rates were measured")
    assert conduct(run("arena", tmp_path, *changes, **given)) == []
    assert display.told == ["AdamW, tuned, pinn: no rate was chosen yet, so it does not run"]
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == ["adamw-tuned.0.linear.jsonl", "adamw.0.linear.jsonl", "adamw.0.pinn.jsonl"]
    with pytest.raises(UserError, match="expected one that can run on these problems"):
        conduct(run("arena", tmp_path, 'problems=["pinn"]', methods=["adamw-tuned"]))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", 'problems=["digit"]'], "problems.0: expected 'digits', 'conv'"),
        (["--set", "problems=[]"], "problems: expected a list of at least 1"),
        (["--set", 'problems=["pinn","pinn"]'], "problems: expected different ones"),
        (["--set", "targets.digits.error=low"], "targets.digits.error: expected a"),
        (["--set", "tuned_adamw.digits.rate=0.0"], "tuned_adamw.digits.rate: expected more than 0"),
        (["--methods", "adam"], "--methods: expected 'adamw'"),
        (["--set", 'variants=["float64"]'], "variants: expected plain, and others beside it"),
        (["--data", "no/such/folder"], "expected a directory with idx files"),
    ],
)
def test_bad_input_is_one_line(tmp_path, words, told):
    result = invoke("run", "arena", "--preset", "smoke", "--out", tmp_path / "out", *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "chosen",
    [["digits", "regression", "cartpole"], pytest.param(list(PROBLEMS), marks=pytest.mark.long)],
    ids=["three", "all"],
)
def test_problems_and_methods_run_resume_and_make_a_page(chosen, tmp_path):
    entries = prepare(settings("arena"), None).entries
    sha = {entry.name: entry.data["sha256"] for entry in entries if entry.name in chosen}
    tuned = [each.name for each in METHODS if each not in UNTUNED]
    changes = [f"targets.{name}={{error=1e9,data='{sha[name]}'}}" for name in ("digits", "regression")]
    changes += [f"{method('arena', name).section}.{problem}.rate=1e-3" for name in tuned for problem in sha]
    changes.append(f"problems={chosen!r}")
    options = [word for change in changes for word in ("--set", change)]
    out = tmp_path / "out"
    result = invoke("run", "arena", "--preset", "smoke", "--methods", "all", "--out", out, *options)
    assert result.exit_code == 0, result.output
    logs = [log.read(path) for path in (out / "logs").iterdir()]
    assert len(logs) == len(METHODS) * len(chosen)
    for found in logs:
        assert found.done, found.training
        last = found.evaluations[-1]
        assert np.isfinite([last["error"], last["test_error"]]).all(), (found.method, found.training)
        assert found.header["training"]["data"]["sha256"] == sha[found.training]
    text = (out / "report.html").read_text()
    for words in ("Scores and failures", "Time to the target", "cartpole: policy 4-32-2", "no target yet", "KNCG",
                  "Nothing was changed in these runs"):  # fmt: skip
        assert words in text, words
    assert ("in place of MNIST" in text) == ("conv" in chosen)
    again = invoke("run", "arena", "--out", out, "--resume")
    assert again.exit_code == 0, again.output
    assert "after 4 iterations" not in again.output
    header = json.loads((out / "logs" / "kncg.0.digits.jsonl").read_text().splitlines()[0])
    assert header["training"]["target"] == 1e9
    assert "adamw" not in header["settings"]


def test_one_problem_can_be_tuned_on_and_several_cannot(tmp_path):
    given = ("--set", "budget.iterations=3", "--grid", "adamw.rate=0.001,0.01")
    result = invoke("tune", "arena", "adamw", "--preset", "linear", *given)
    assert result.exit_code == 0, result.output
    assert "Best: --set adamw.rate=" in result.output
    result = invoke("tune", "arena", "adamw", *given)
    assert result.exit_code == 2
    assert "tune: expected one problem" in result.stderr


def test_the_command_shows_the_arena():
    shown = "".join(invoke("show", "arena").output.split())
    assert "nothingchosenbyhand,presetsmall" in shown
    assert "tuned_muon" in shown
    listed = invoke("list", "arena").output
    assert "10 problems" in listed
    assert "sensitivity" in listed


def test_the_suite_is_one_problem_where_there_is_one():
    one = prepare(settings("arena", 'problems=["linear"]'), None)
    assert (one.name, one.data) == ("linear", one.entries[0].data)
    several = prepare(settings("arena"), None)
    assert several.train is None
    assert several.data["name"] == "10 problems"
    assert figures.load("arena").problems(settings("arena")) == 10
