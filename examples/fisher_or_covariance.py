"""Which metric predicts how far a step moves the model? The Fisher metric F against TONGA's U.

The paper (its section on TONGA) argues that U, the uncentered covariance of the gradients at the data's own targets,
is a metric only in so far as the model fits the data. Here a classifier is trained by natural gradient; for each step
d the true KL divergence of the model's outputs is compared with ½dᵀFd and with ½dᵀUd.

    python examples/fisher_or_covariance.py [picture.png]
"""

import helper
import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng


def model(params, inputs):
    hidden = jnp.tanh(inputs @ params["w"] + params["b"])
    return hidden @ params["v"]


def problem(seed=0, examples=400, inputs=10, hidden=30, classes=5):
    """Return a start and data whose labels are partly noise, so that no model can fit them all at once."""
    keys = jax.random.split(jax.random.key(seed), 5)
    x = jax.random.normal(keys[0], (examples, inputs))
    clean = jnp.argmax(jnp.sin(2 * x[:, :classes]), axis=1)
    noise = jax.random.randint(keys[1], (examples,), 0, classes)
    t = jnp.where(jax.random.bernoulli(keys[2], 0.2, (examples,)), noise, clean)
    params = {
        "w": jax.random.normal(keys[3], (inputs, hidden)) / jnp.sqrt(inputs),
        "b": jnp.zeros(hidden),
        "v": 0.1 * jax.random.normal(keys[4], (hidden, classes)),
    }
    return params, (x, t)


def run(steps=60, seed=0):
    """Return, for each step, the true KL, ½dᵀFd, ½dᵀUd and the loss."""
    params, (x, t) = problem(seed)
    likelihood = ng.Categorical()
    opt = ng.natural_gradient(model, likelihood, learning_rate=0.3, damping=ng.Constant(0.05))

    @jax.jit
    def step(params, state):
        moved, state, info = opt.step(params, state, (x, t))
        d = jax.tree.map(jnp.subtract, moved, params)
        covariance = ng.metric_product(model, likelihood, params, x, metric=ng.EmpiricalFisher(), targets=t)
        kl = jnp.mean(likelihood.kl(model(params, x), model(moved, x)))
        return moved, state, jnp.stack([kl, info.kl, covariance.quadratic(d) / 2, info.loss])

    state, rows = opt.init(params), []
    for _ in range(steps):
        params, state, row = step(params, state)
        rows.append(np.asarray(row))
    return np.stack(rows).T


def main(out=None, steps=60):
    """Return both predictions over the true divergence, step by step."""
    kl, fisher, covariance, _ = run(steps)
    ratios = {"½ dᵀFd, the Fisher metric": fisher / kl, "½ dᵀUd, TONGA's covariance": covariance / kl}
    shown = {name: (np.arange(1, steps + 1), ratio) for name, ratio in ratios.items()}
    title = "How far did the step move the model?"
    helper.show(out, shown, title, "step", "predicted / true KL of the step", ylim=(0, 1.6))
    return fisher / kl, covariance / kl


if __name__ == "__main__":
    helper.run(main)
