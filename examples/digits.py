"""Start here: classify scikit-learn's handwritten digits with KNCG, on minibatches.

python examples/digits.py [picture.png]
"""

import helper
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import natgrad as ng


def model(params, inputs):
    """Return logits: no softmax at the end, the likelihood brings it."""
    hidden = jnp.tanh(inputs @ params["w"] + params["b"])
    return hidden @ params["v"] + params["c"]


def init(key, hidden=50):
    k1, k2 = jax.random.split(key)
    return {
        "w": jax.random.normal(k1, (64, hidden)) / 8,
        "b": jnp.zeros(hidden),
        "v": jax.random.normal(k2, (hidden, 10)) / hidden**0.5,
        "c": jnp.zeros(10),
    }


def batches(x, t, steps, size=300):
    """Yield random rows."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.choice(len(x), size, replace=False)
        yield x[rows], t[rows]


def main(steps=60, out=None):
    """Train on 1,297 digits, and return the accuracy on the other 500."""
    pixels, labels = load_digits(return_X_y=True)
    x = (pixels / 16).astype(np.float32)
    params = init(jax.random.key(0))
    print(ng.check(model, ng.Categorical(), params, (x[:100], labels[:100])))

    opt = ng.kncg(model, ng.Categorical(), weight_decay=1e-3)
    correct = jax.jit(lambda p: jnp.mean(jnp.argmax(model(p, x[1297:]), axis=1) == labels[1297:]))
    log = []
    for _, state, info in ng.loop(opt, params, batches(x[:1297], labels[:1297], steps)):
        log.append(ng.scalars(info) | {"accuracy": float(correct(state.average))})  # or wandb.log(…)
    lines = {name: (range(1, steps + 1), [row[name] for row in log]) for name in ("accuracy", "loss")}
    helper.show(out, lines, "Digits", "step", "accuracy on new digits; loss of the batch")
    return log[-1]["accuracy"]


if __name__ == "__main__":
    helper.run(main)
