"""Start here: classify scikit-learn's handwritten digits.

python examples/digits.py
"""

import jax
import jax.numpy as jnp
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


def main(steps=20):
    """Train on 1,297 digits, and return the accuracy on the other 500."""
    pixels, labels = load_digits(return_X_y=True)
    x, t = jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(labels)
    train, test = (x[:1297], t[:1297]), (x[1297:], t[1297:])
    params = init(jax.random.key(0))

    print(ng.check(model, ng.Categorical(), params, train))
    opt = ng.natural_gradient(model, ng.Categorical(), l2=1e-3)
    log = []
    for trained, _, info in ng.loop(opt, params, [train] * steps):
        params = trained
        log.append(ng.scalars(info))  # or wandb.log(ng.scalars(info))

    accuracy = float(jnp.mean(jnp.argmax(model(params, test[0]), axis=1) == test[1]))
    print(
        f"after {steps} steps: training loss {log[-1]['new_loss']:.3f}, accuracy on new digits {accuracy:.1%}"
    )
    return accuracy


if __name__ == "__main__":
    main()
