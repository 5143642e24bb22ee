"""Trains by one method on a mesh of devices, in one process or several: run as a script by the sharding tests.

Without a mesh the same steps run on one device on plain arrays: what the others are compared with.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import natgrad as ng

BATCH, RAGGED, BATCHES = 96, 91, 3
"""Examples in a batch, in the last one, and batches in an epoch."""
MICROBATCH = 40
SIZES = (16, 32, 16, 8)


def model(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def optimizer(name, microbatch=MICROBATCH):
    """Return a method whose solver takes a fixed number of iterations."""
    common = {"model": model, "likelihood": ng.Bernoulli(), "microbatch": microbatch}
    if name == "ngd":
        return ng.natural_gradient(**common, learning_rate=0.5, solver=ng.CG(maxiter=6, rtol=0.0))
    if name == "ncg-q":
        return ng.natural_conjugate_gradient(**common, direction=ng.Preconditioned(ng.Jacobi(blocks=4)))
    if name == "kncg":
        return ng.kncg(**common, average=None)
    if name == "hf":
        solver = ng.TruncatedCG(12, progress=None)
        return ng.hessian_free(**common, solver=solver, preconditioner=ng.Diagonal(0.75, blocks=4))
    if name == "ksd":
        return ng.krylov_subspace_descent(**common, size=4)
    if name == "minres-qlp":
        return ng.natural_gradient(**common, learning_rate=0.5, solver=ng.MinresQLP(maxiter=6, rtol=0.0))
    if name == "direct":
        return ng.natural_gradient(**common, learning_rate=0.5, solver=ng.Direct())
    raise ValueError(name)


def parameters(dtype, sizes=SIZES):
    rng = np.random.default_rng(0)
    return [
        {"w": (rng.normal(size=(a, b)) / a**0.5).astype(dtype), "b": rng.normal(size=b).astype(dtype) / 10}
        for a, b in pairwise(sizes)
    ]


def batch(number, dtype, padded=True):
    """Return a weighted batch; the last of an epoch is short, and filled up with examples of weight 0."""
    rng = np.random.default_rng([1, number % BATCHES])
    x = rng.normal(size=(BATCH, SIZES[0])).astype(dtype)
    t = (x[:, : SIZES[-1]] + rng.normal(size=(BATCH, SIZES[-1])) > 0).astype(dtype)
    w = rng.uniform(0.5, 2.0, BATCH).astype(dtype)
    if number % BATCHES == BATCHES - 1:
        if not padded:
            return x[:RAGGED], t[:RAGGED], w[:RAGGED]
        w[RAGGED:] = 0
    return x, t, w


def on_one_device(name, dtype, steps, padded=True):
    """Return the parameters after so many steps on plain arrays."""
    opt = optimizer(name)
    params = jax.tree.map(jnp.asarray, parameters(dtype))
    state, step = opt.init(params), jax.jit(opt.step)
    for number in range(steps):
        params, state, _ = step(params, state, tuple(map(jnp.asarray, batch(number, dtype, padded))))
    return params


def mesh_of(devices, kind):
    return jax.make_mesh((devices,), ("data",), axis_types=(kind,), devices=jax.devices()[:devices])


def place(params, mesh, sharded):
    """Return the parameters on the mesh: a copy on each device, or each leaf cut along its last axis."""

    def put(leaf):
        spec = P(*[None] * (leaf.ndim - 1), "data") if sharded else P()
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    return jax.tree.map(put, params)


def share(arrays, mesh):
    """Return a batch spread over the mesh; each process hands in its own examples alone."""
    index, count = jax.process_index(), jax.process_count()
    sharding = NamedSharding(mesh, P("data"))

    def own(array):
        size = len(array) // count
        local = array[index * size : (index + 1) * size]
        return jax.make_array_from_process_local_data(sharding, local)

    return jax.tree.map(own, arrays)


def on_mesh(name, dtype, steps, devices, sharded):
    """Return the parameters after the same steps, the batch sharded over the devices."""
    opt = optimizer(name)
    # Parameters on the axis of the examples are for XLA to place: JAX's own types allow an axis once a product.
    mesh = mesh_of(devices, AxisType.Auto if sharded else AxisType.Explicit)
    params = place(parameters(dtype), mesh, sharded)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
    state, step = opt.init(params), jax.jit(opt.step)
    for number in range(steps):
        params, state, _ = step(params, state, share(batch(number, dtype), mesh))
    assert jax.tree.all(
        jax.tree.map(lambda leaf, s: leaf.sharding.is_equivalent_to(s, leaf.ndim), params, shardings)
    ), "parameters changed their sharding"
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, P()))(params)


def program(devices, sizes, microbatch, sharded):
    """Return the text of a compiled step of NGD, and the parameters' bytes."""
    opt = optimizer("ngd", microbatch)
    mesh = mesh_of(devices, AxisType.Auto if sharded else AxisType.Explicit)
    params = place(parameters("float32", sizes), mesh, sharded)
    x, t, w = batch(0, "float32")
    data = share((np.resize(x, (BATCH, sizes[0])), np.resize(t, (BATCH, sizes[-1])), w), mesh)
    state = opt.init(params)
    text = jax.jit(opt.step).lower(params, state, data).compile().as_text()
    return {"text": text, "bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(params))}


def difference(found, wanted):
    """Return the largest relative difference of a leaf."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    both = [(np.asarray(f.addressable_data(0), np.float64), np.asarray(w, np.float64)) for f, w in pairs]
    return max(float(np.linalg.norm(f - w) / np.linalg.norm(w)) for f, w in both)


def main(job):
    """Do what a job asks and write what was found.

    `cases` of (method, dtype, steps, devices, sharded) give differences, `programs` of (devices, sizes, microbatch,
    sharded) their texts.
    """
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    if "coordinator" in job:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(job["coordinator"], job["processes"], job["process"])
    references, found = {}, [program(*each) for each in job.get("programs", [])]
    jax.config.update(
        "jax_disable_most_optimizations", True
    )  # The programs are what a user has; here it saves time.
    for name, dtype, steps, devices, sharded in job.get("cases", []):
        key = (name, dtype, steps)
        if key not in references:
            references[key] = jax.device_get(on_one_device(*key, padded=name != "ngd"))
        found.append(difference(on_mesh(name, dtype, steps, devices, sharded), references[key]))
    if jax.process_index() == 0:
        Path(job["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
