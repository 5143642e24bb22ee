"""Dropout: the random key is the model's `context`, one fixed value for a whole step.

So the gradient, every product with the metric and both losses in ρ see the same thinned network; the next step
draws another.

    python examples/dropout.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

import natgrad as ng


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.2, deterministic=not train)(jnp.tanh(nn.Dense(50)(x)))
        return nn.Dense(1)(x)


net = Net()


def model(params, inputs, key):
    return net.apply(params, inputs, train=True, rngs={"dropout": key})


def main(steps=30):
    """Train, and return the loss of the whole network before and after, and each step's ρ."""
    x = jax.random.normal(jax.random.key(0), (500, 2))
    t = (x[:, :1] * x[:, 1:] > 0).astype(x.dtype)
    params = net.init(jax.random.key(1), x, train=False)

    def loss(params):
        return float(jnp.mean(ng.Bernoulli().nll(net.apply(params, x, train=False), t)))

    opt = ng.kncg(model, ng.Bernoulli())
    before, rhos = loss(params), []
    keys = jax.random.split(jax.random.key(2), steps)
    batches = [{"batch": (x, t), "context": key} for key in keys]
    for trained, _, info in ng.loop(opt, params, batches):
        params = trained
        rhos.append(float(info.rho))
    after = loss(params)
    print(f"loss of the whole network: {before:.4f} before, {after:.4f} after {steps} steps")
    return before, after, rhos


if __name__ == "__main__":
    main()
