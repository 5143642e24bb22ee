"""Figure 2's protocol in plain NumPy and float64: every training from scratch, dense metric, no sharing of anything."""

import numpy as np

from natgrad_paper.training.models import Classifier


def forward(params, inputs):
    """Return the hidden units and the class probabilities."""
    (w, b), (v, c) = params
    hidden = np.tanh(inputs @ w + b)
    logits = hidden @ v + c
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def jacobian(params, inputs):
    """Return d logits / d parameters of every example, (n, 62, parameters), parameters flat in their order."""
    _, (v, c) = params
    hidden, _ = forward(params, inputs)
    n, classes = len(inputs), len(c)
    slope = 1 - hidden**2
    by_hidden = v.T[None] * slope[:, None, :]  # n, classes, hidden units
    by_w = np.einsum("ni,nkh->nkih", inputs, by_hidden).reshape(n, classes, -1)
    by_v = np.einsum("nh,kl->nkhl", hidden, np.eye(classes)).reshape(n, classes, -1)
    by_c = np.broadcast_to(np.eye(classes), (n, classes, classes))
    return np.concatenate([by_w, by_hidden, by_v, by_c], axis=2)


def step(params, inputs, labels, rate, damping):
    """Return the parameters after a step: of the gradient, or with a damping, of the natural gradient."""
    _, p = forward(params, inputs)
    j = jacobian(params, inputs)
    n = len(inputs)
    gradient = np.einsum("nk,nkp->p", p - np.eye(p.shape[1])[labels], j) / n
    direction = gradient
    if damping is not None:
        metric = np.diag([1.0] * j.shape[2]) * damping
        for k in range(n):
            metric += j[k].T @ (np.diag(p[k]) - np.outer(p[k], p[k])) @ j[k] / n
        direction = np.linalg.solve(metric, gradient)
    flat = np.concatenate([part.ravel() for layer in params for part in layer]) - rate * direction
    sizes = np.cumsum([part.size for layer in params for part in layer])[:-1]
    parts = iter(np.split(flat, sizes))
    return [tuple(next(parts).reshape(part.shape) for part in layer) for layer in params]


def start(config, seed):
    """Return a seed's initial parameters."""
    layers = Classifier((config.stream.side**2, config.model.hidden, 62)).init(seed)
    return [tuple(np.asarray(layer[name], np.float64) for name in ("weights", "biases")) for layer in layers]


def train(config, seed, rate, damping, example):
    """Return the parameters after a whole stream; `example(k)` is the k-th one."""
    params = start(config, seed)
    for update in range(config.stream.updates):
        batch = [example(update * config.stream.batch + k) for k in range(config.stream.batch)]
        inputs, labels = np.stack([x for x, _ in batch]), np.array([y for _, y in batch])
        params = step(params, inputs, labels, rate, damping)
    return params


def variance(config, seed, rate, damping, draw, segment, held_out):
    """Return the variance of the outputs over trainings with a segment replaced; `draw(stream, k)` is an example."""
    first = (segment - 1) * config.stream.segment * config.stream.batch
    length = config.stream.segment * config.stream.batch
    outputs = []
    for repeat in range(config.repeats):
        fresh = 16 + (segment - 1) * config.repeats + repeat

        def example(k, fresh=fresh):
            return draw(fresh if first <= k < first + length else 0, k)

        params = train(config, seed, rate, damping, example)
        outputs.append(forward(params, held_out)[1])
    return np.var(outputs, axis=0, ddof=1).mean()
