"""Which metric predicts how far a step moves the model? The Fisher metric F against TONGA's U.

The paper (its section on TONGA) argues that U, the uncentered covariance of the gradients at the data's own targets,
is a metric only in so far as the model fits the data. Here a classifier is trained by natural gradient; for each step
d the true KL divergence of the model's outputs is compared with ½dᵀFd and with ½dᵀUd.

    python examples/fisher_or_covariance.py figure.png
"""

import sys

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
    kl, fisher, covariance, loss = run(steps)
    for name, guess in (("½dᵀFd", fisher), ("½dᵀUd", covariance)):
        ratio = guess / kl
        print(
            f"{name} / true KL: first step {ratio[0]:.2f}, median {np.median(ratio):.2f}, last {ratio[-1]:.2f}"
        )
    print(f"loss from {loss[0]:.2f} to {loss[-1]:.3f}")
    if out is not None:
        draw(out, kl, fisher, covariance)
    return fisher / kl, covariance / kl


def draw(out, kl, fisher, covariance):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    steps = np.arange(1, len(kl) + 1)
    axes.axhline(1, color="0.7", lw=1)
    axes.plot(steps, fisher / kl, color="#0072B2", label="½ dᵀFd, the Fisher metric")
    axes.plot(steps, covariance / kl, color="#D55E00", label="½ dᵀUd, TONGA's covariance")
    axes.set(xlabel="step", ylabel="predicted / true KL of the step", ylim=(0, 1.6))
    axes.set_title("How far did the step move the model?", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(out, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
