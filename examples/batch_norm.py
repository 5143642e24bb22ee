"""Batch normalization: a model that also returns new statistics is wrapped in `ng.Stateful`.

Within a step the batch's own mean and variance normalize, and the running ones are updated from the gradient pass;
afterwards the running ones predict. Keep `microbatch=None`: a chunk would have a mean of its own.

    python examples/batch_norm.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

import natgrad as ng


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(20)(x))
        return nn.Dense(1)(jnp.tanh(x))


net = Net()


def training(params, inputs, statistics):
    """Return the outputs and the new statistics."""
    variables = {"params": params, "batch_stats": statistics}
    outputs, new = net.apply(variables, inputs, train=True, mutable=["batch_stats"])
    return outputs, new["batch_stats"]


def predict(params, inputs, statistics):
    return net.apply({"params": params, "batch_stats": statistics}, inputs, train=False)


def data(key, count=500):
    """Return points in the plane, far from centered, and whether their centered coordinates have the same sign."""
    x = jax.random.normal(key, (count, 2))
    return 5 + 10 * x, (x[:, :1] * x[:, 1:] > 0).astype(x.dtype)


def main(steps=30):
    """Train, and return the accuracy on new points with the running statistics and with the first ones."""
    train_key, test_key, key = jax.random.split(jax.random.key(0), 3)
    batch = data(train_key)
    variables = net.init(key, batch[0], train=False)
    params, statistics = variables["params"], variables["batch_stats"]
    opt = ng.kncg(ng.Stateful(training), ng.Bernoulli())
    # The loop hands the new statistics on; in a loop of your own: context=info.context.
    for trained, _, info in ng.loop(opt, params, [batch] * steps, context=statistics):
        params, running = trained, info.context
    x, t = data(test_key)
    accuracy = [jnp.mean((predict(params, x, s) > 0) == (t > 0.5)) for s in (running, statistics)]
    print(f"loss {info.loss:.4f}; accuracy {accuracy[0]:.3f}, with the first statistics {accuracy[1]:.3f}")
    return [float(a) for a in accuracy]


if __name__ == "__main__":
    main()
