"""Several processes train one model and may lose one: `jax.distributed` for the work, orbax for the checkpoints.

Each process makes its own share of every batch; the parameters are copied to all. Kill one of them, and the others end
within seconds. Start again, in any number of processes: training goes on from the last checkpoint.

    python examples/many_processes.py --processes 2 --process 0 &
    python examples/many_processes.py --processes 2 --process 1
    python examples/many_processes.py                    # goes on alone

On Slurm, Kubernetes or Cloud TPU `jax.distributed.initialize()` finds the others by itself.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import natgrad as ng

BATCH, INPUTS, UNITS = 512, 20, 32


def model(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def init():
    rng = np.random.default_rng(0)
    w, v = rng.normal(size=(INPUTS, UNITS)) / INPUTS**0.5, np.zeros((UNITS, 1))
    return jax.tree.map(np.float32, {"w": w, "b": np.zeros(UNITS), "v": v})


def examples(step):
    """Return a step's batch: a pure function, so that it does not matter who makes which share of it."""
    x = np.random.default_rng([1, step]).normal(size=(BATCH, INPUTS)).astype(np.float32)
    return x, (x[:, :1] * x[:, 1:2] > 0).astype(np.float32)


def main(directory, steps, address="localhost:4321", processes=1, process=0, every=10):
    jax.distributed.initialize(address, processes, process, heartbeat_timeout_seconds=10)
    mesh = jax.make_mesh((jax.device_count(),), ("examples",))

    def placed(tree, spec):
        """Put arrays on the mesh. Each process looks only at what its own devices are to hold."""
        place = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda a: jax.make_array_from_callback(a.shape, place, lambda index: a[index]), tree
        )

    opt = ng.kncg(model, ng.Bernoulli())
    trained = placed(jax.device_get((init(), opt.init(init()))), P())
    options = ocp.CheckpointManagerOptions(save_interval_steps=every, max_to_keep=2)
    with ocp.CheckpointManager(Path(directory).absolute(), options=options) as checkpoints:
        last = checkpoints.latest_step()
        if last is not None:
            trained = checkpoints.restore(last, args=ocp.args.StandardRestore(trained))
        for number in range(0 if last is None else last + 1, steps):
            *trained, info = opt.step(*trained, placed(examples(number), P("examples")))
            trained = tuple(trained)
            checkpoints.save(number, args=ocp.args.StandardSave(trained))
            if process == 0:
                print(f"step {number}: loss {info.loss:.4f}, {processes} processes", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", default="many_processes")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--address", default="localhost:4321")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    main(**vars(parser.parse_args()))
