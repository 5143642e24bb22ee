"""What each method keeps, in parameter-sized vectors: between steps (its state) and within one (XLA's plan).

python benchmarks/memory.py --batch 500
"""

import argparse

import jax
import jax.numpy as jnp

import natgrad as ng
from natgrad_paper.training.models import Autoencoder

autoencoder = Autoencoder((784, 400, 200, 100, 50, 25, 6))
LIKELIHOOD = ng.Bernoulli()


def methods() -> dict[str, ng.Optimizer]:
    natural = ng.Natural(ng.CG(30))
    conjugate = {"model": autoencoder, "likelihood": LIKELIHOOD}
    return {
        "SGD": ng.sgd(autoencoder, LIKELIHOOD),
        "NGD": ng.natural_gradient(autoencoder, LIKELIHOOD),
        "NCG-L": ng.natural_conjugate_gradient(**conjugate, direction=natural),
        "NCG-F": ng.natural_conjugate_gradient(**conjugate, direction=natural, beta=ng.PolakRibiere()),
        "NCG-Q": ng.natural_conjugate_gradient(**conjugate, direction=ng.Preconditioned(ng.Jacobi())),
        "KNCG": ng.kncg(autoencoder, LIKELIHOOD),
        "HF": ng.hessian_free(autoencoder, LIKELIHOOD),
        "KSD, 20 vectors": ng.krylov_subspace_descent(autoencoder, LIKELIHOOD),
        "TONGA": ng.tonga(autoencoder, LIKELIHOOD),
    }


def size(tree) -> int:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=500)
    x = jnp.zeros((parser.parse_args().batch, 784))
    params = autoencoder.init(0)
    vector = size(params)
    print(f"parameter vectors of {vector / 2**20:.1f} MiB; batch {x.shape[0]}")
    print(f"{'method':18s}{'state':>8s}{'within a step':>16s}")
    for name, opt in methods().items():
        state = opt.init(params)
        plan = jax.jit(opt.step).lower(params, state, (x, x)).compile().memory_analysis()
        print(f"{name:18s}{size(state) / vector:8.1f}{plan.temp_size_in_bytes / vector:16.1f}", flush=True)


if __name__ == "__main__":
    main()
