"""The picture of README.md, from the logs of a run among the results: error against seconds of training.

    python tools/draw_front.py          # docs/figures/front.png

The picture carries a hash of the numbers that it shows; a test compares it with that of the logs.
"""

import hashlib
from pathlib import Path

import numpy as np

from natgrad_paper.report.load import Runs, read

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "figures" / "front.png"
FOLDER, METHODS = ROOT / "results" / "front", ("kncg", "adamw-tuned", "muon-tuned")
COLORS = ("#D55E00", "#0072B2", "#009E73")
TOP = 16.0
"""The largest error in the picture, a little above the plateau on which all begin; lines may come from above."""


def lines(found: Runs, methods: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
    """Return (seconds, training error) of every seed, by the method's label."""
    result = {}
    for name in methods:
        rows = [
            np.array([(e["training_seconds"], e["error"]) for e in log.evaluations]).T
            for log in found.trainings(name)
        ]
        result[found.label(name)] = rows
    return result


def digest(shown: dict[str, list[np.ndarray]]) -> str:
    """Return a hash of names and numbers."""
    found = hashlib.sha256()
    for name, rows in shown.items():
        found.update(name.encode())
        for row in rows:
            found.update(np.round(row, 6).tobytes())
    return found.hexdigest()


def draw(shown: dict[str, list[np.ndarray]], out: Path) -> None:
    """Save the picture, with the hash in it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for number, (name, rows) in enumerate(shown.items()):
        for seed, (seconds, error) in enumerate(rows):
            color, width = COLORS[number % len(COLORS)], 1.2 if number else 2.0
            label = name if seed == 0 else None
            axes.plot(seconds, error, color=color, lw=width, label=label)
    axes.set(
        yscale="log",
        ylim=(None, TOP),
        xlim=(0, None),
        xlabel="seconds of training",
        ylabel="squared error per image, training set",
    )
    axes.set_title("A deep autoencoder on one CPU core, one line per seed", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(out, dpi=120, metadata={"Comment": digest(shown)})
    plt.close(figure)


if __name__ == "__main__":
    draw(lines(read(FOLDER), METHODS), OUT)
    print(OUT.relative_to(ROOT))
