"""What lowers KNCG's test error: penalties, decay, and a metric on other or unlabelled inputs.

python benchmarks/generalization.py [--mnist DIRECTORY] [--settings default,l2=1e-5] [--seeds 100,101,102]

Two problems: the arena's Curves autoencoder, and a dense classifier on 10,000 images of MNIST (its idx files are in
DIRECTORY). Errors are those of the averaged parameters, after all steps and at the best of twenty evaluations. The
budget is in steps, so the machine need not be idle.

The metric's inputs: `other` are further training examples; `unlabelled` are inputs that no gradient ever sees.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import natgrad as ng
from natgrad_paper.data import curves, idx_file
from natgrad_paper.figures.arena.form import Form
from natgrad_paper.figures.arena.nets import dense, mlp
from natgrad_paper.figures.arena.problems import PROBLEMS

STEPS, EVALUATIONS, METRIC = 500, 20, 512
BATCH = 500
SETTINGS = (
    "default",
    "l2=1e-6",
    "l2=1e-5",
    "l2=1e-4",
    "weight_decay=1e-5",
    "weight_decay=1e-4",
    "other",
    "unlabelled",
)


class Task(NamedTuple):
    """A problem with inputs that nobody labelled."""

    name: str
    model: Any
    likelihood: Any
    init: Callable[[int], Any]
    errors: Callable[..., dict]
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    unlabelled: np.ndarray


def curves_task() -> Task:
    """Return the paper's autoencoder on 4,000 curves; 4,000 further ones have no part in the gradient."""
    entry = PROBLEMS["curves"].make(Form(), None)
    assert entry.train is not None
    more = curves.generate(1, len(entry.train[0]), 1).train.astype(np.float32)
    return Task(
        "curves", entry.model, entry.likelihood, entry.init, entry.errors, entry.train, entry.test, more
    )


def mnist_task(directory: Path) -> Task:
    """Return a classifier of 10,000 images of MNIST; the next 10,000 lose their labels."""
    found = idx_file.read(directory)
    labels, test_labels = idx_file.labels(directory, found)
    images, tested = (each.astype(np.float32) for each in (found.train, found.test))
    model, likelihood = partial(mlp, jax.nn.relu), ng.Categorical()

    def init(seed: int) -> Any:
        return dense(jax.random.key(seed), (images.shape[1], 256, 128, 10), 2**0.5)

    def errors(params: Any, inputs: Any, targets: Any) -> dict:
        outputs = model(params, inputs)
        wrong = (jnp.argmax(outputs, axis=-1) != targets).astype(outputs.dtype)
        return {"error": likelihood.nll(outputs, targets), "wrong": wrong}

    train, unlabelled = (images[:10_000], labels[:10_000]), images[10_000:20_000]
    return Task("mnist", model, likelihood, init, errors, train, (tested, test_labels), unlabelled)


def run(task: Task, setting: str, seed: int) -> list[float]:
    """Return the training error, the test error, the best test error on the way, and what else is judged."""
    name, _, value = setting.partition("=")
    opt = ng.kncg(task.model, task.likelihood, **({name: float(value)} if value else {}))
    train, test, unlabelled = jax.tree.map(jnp.asarray, (task.train, task.test, task.unlabelled))
    metric = {"other": train[0], "unlabelled": unlabelled}.get(setting)

    @jax.jit
    def step(params: Any, state: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        rows = jax.random.permutation(one, len(train[0]))[:BATCH]
        batch = jax.tree.map(lambda each: each[rows], train)
        if metric is None:
            return opt.step(params, state, batch)
        chosen = metric[jax.random.permutation(two, len(metric))[:METRIC]]
        return opt.step(params, state, batch, metric_inputs=chosen)

    @jax.jit
    def judged(params: Any, cases: Any) -> Any:
        return jax.tree.map(jnp.mean, task.errors(params, *cases))

    params = task.init(seed)
    state = opt.init(params)
    tests = []
    for number in range(STEPS):
        params, state, _ = step(params, state, jax.random.fold_in(jax.random.key(seed), number))
        if (number + 1) % (STEPS // EVALUATIONS) == 0:
            tests.append(judged(state.average, test))
    at_last = float(judged(state.average, train)["error"])
    found = [float(each["error"]) for each in tests]
    wrong = [100 * float(each["wrong"]) for each in tests[-1:] if "wrong" in each]
    return [at_last, found[-1], min(found), *wrong]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--mnist", type=Path, help="the directory of MNIST's idx files; without it, Curves alone"
    )
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--seeds", default="100,101,102")
    chosen = parser.parse_args()
    seeds = [int(each) for each in chosen.seeds.split(",")]
    tasks = [curves_task(), *([mnist_task(chosen.mnist)] if chosen.mnist else [])]
    print(
        "| problem | setting | seed | training | test | best test | misclassified, % |\n|---|---|---|---|---|---|---|"
    )
    pairs = [(task, setting) for task in tasks for setting in chosen.settings.split(",")]
    for task, setting in track(pairs, "Training"):
        rows = []
        for seed in seeds:
            rows.append(run(task, setting, seed))
            print(row(task, setting, str(seed), rows[-1]), flush=True)
        print(row(task, setting, "mean", list(np.exp(np.mean(np.log(rows), axis=0)))), flush=True)


def row(task: Task, setting: str, seed: str, numbers: list[float]) -> str:
    """Return a row of the table; means are geometric."""
    shown = [f"{number:.3g}" for number in numbers]
    return f"| {task.name} | {setting} | {seed} | {' | '.join([*shown, ''][:4])} |"


if __name__ == "__main__":
    main()
