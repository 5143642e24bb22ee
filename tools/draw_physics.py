"""Draw the picture of docs/physics.md, solution and error of Poisson's equation: python tools/draw_physics.py"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import natgrad as ng
from natgrad_paper.figures.pinn.equations import EQUATIONS

OUT = Path(__file__).parents[1] / "docs" / "figures" / "solution.png"
STEPS = 60


def main(name: str = "p1", seed: int = 0, steps: int = STEPS, out: Path = OUT) -> float:
    """Train, draw, and return the relative error."""
    with jax.enable_x64(True):
        equation = EQUATIONS[name]
        opt = ng.gauss_newton(equation.model, equation.likelihood)
        params, batch = equation.init(jax.random.key(seed)), equation.draw(jax.random.key(0), equation.counts)
        state, step = opt.init(params), jax.jit(opt.step)
        for _ in range(steps):
            params, state, _ = step(params, state, batch)
        points, answers = equation.judged(equation.grid)
        found = np.asarray(equation.u(params, jnp.asarray(points)))
    error = np.linalg.norm(found - answers) / np.linalg.norm(answers)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    pictures = (
        (found, f"the net after {steps} steps"),
        (found - np.asarray(answers), f"its error: {error:.0e} in L2"),
    )
    for place, (values, title) in zip(axes, pictures, strict=True):
        drawn = place.tripcolor(*points.T, values, shading="gouraud", cmap="RdBu_r")
        figure.colorbar(drawn, ax=place)
        place.set(title=title, xlabel="x", ylabel="y", aspect="equal")
    figure.savefig(out, dpi=110)
    print(f"{out.name}: relative error {error:.1e} after {steps} steps")
    return float(error)


if __name__ == "__main__":
    main()
