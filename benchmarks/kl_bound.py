"""Does the bound on a step's KL protect from overfitting, as section 3 of the paper argues?

    python benchmarks/kl_bound.py [--seeds 10]

200 handwritten digits to learn, 1,597 to test on, a net of two hidden layers. Natural gradient descent goes on to the
same training error by steps of different KL, and once with a line search, which knows no bound. If the bound protects,
the test error is lower the shorter the steps. Not by the clock, so the machine need not be idle.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import natgrad as ng
from natgrad_paper.report.claims import interval

LEARNED, CASES, MOST = 0.02, 200, 400
LIKELIHOOD = ng.Categorical()
SEARCHES = {
    **{f"KL {radius:g} per step": (ng.KLRadius(radius), ng.Constant(1e-3)) for radius in (0.003, 0.03, 0.3)},
    "line search": (ng.LineSearch(), ng.LevenbergMarquardt("calibrate")),
}


def model(params, inputs):
    """Return the logits."""
    for weights, biases in params[:-1]:
        inputs = jnp.tanh(inputs @ weights + biases)
    weights, biases = params[-1]
    return inputs @ weights + biases


def init(seed):
    """Return layers of 64 units."""
    keys = jax.random.split(jax.random.key(seed), 3)
    sizes = ((64, 64), (64, 64), (64, 10))
    return [
        (jax.random.normal(key, size) / 8, jnp.zeros(size[1])) for key, size in zip(keys, sizes, strict=True)
    ]


@jax.jit
def errors(params, inputs, targets):
    """Return the mean negative log-likelihood, and the share that is misclassified."""
    outputs = model(params, inputs)
    return jnp.mean(LIKELIHOOD.nll(outputs, targets)), jnp.mean(jnp.argmax(outputs, -1) != targets)


def trained(step, opt, seed, train, test):
    """Return the steps to the training error, and the two test errors there."""
    params = init(seed)
    state = opt.init(params)
    taken = 0
    while taken < MOST and float(errors(params, *train)[0]) >= LEARNED:
        params, state, _ = step(params, state, train)
        taken += 1
    return taken, *map(float, errors(params, *test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    digits = load_digits()
    images, labels = (digits.data / 16 - 0.5).astype(np.float32), digits.target
    found = {}
    for name, (search, damping) in SEARCHES.items():
        opt = ng.natural_gradient(model, LIKELIHOOD, search=search, damping=damping)
        step, rows = jax.jit(opt.step), []
        for seed in seeds:
            order = np.random.default_rng(seed).permutation(len(images))
            train, test = ((images[part], labels[part]) for part in np.split(order, [CASES]))
            rows.append(trained(step, opt, seed, train, test))
        found[name] = np.array(rows)
    reference = found["KL 0.03 per step"]
    print("| steps | how many | test nll | misclassified | test nll, less that of KL 0.03 (95%) |")
    print("|---|---|---|---|---|")
    for name, rows in found.items():
        mean, low, high = interval(rows[:, 1] - reference[:, 1])
        difference = "–" if rows is reference else f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
        number, nll, wrong = rows.mean(axis=0)
        print(f"| {name} | {number:.0f} | {nll:.3f} | {100 * wrong:.1f}% | {difference} |")


if __name__ == "__main__":
    main()
