"""Pictures of what the data look like, before and after preprocessing or deformation."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from natgrad_paper.data import characters, contrast
from natgrad_paper.data.glyphs import CHARACTERS, Glyphs
from natgrad_paper.data.labelled import EXPRESSIONS, Faces

STAGES = ("glyph", "slant", "thickness", "affine", "elastic", "pinch")


def faces_figure(faces: Faces, columns: int = 8) -> Figure:
    """Return a figure of training faces, a line for each expression: as they come, and after normalisation."""
    train = faces.train
    lines = [train.images[train.labels == label][:columns] for label in range(len(EXPRESSIONS))]
    # An expression with fewer faces leaves its places grey.
    shown = np.full((len(lines), columns, *train.images.shape[1:]), 128, np.uint8)
    for place, line in zip(shown, lines, strict=True):
        place[: len(line)] = line
    figure = Figure(figsize=(0.62 * 2 * columns + 1.4, 0.62 * len(lines) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    raw, normal = figure.subplots(1, 2)
    _montage(raw, shown, 255)
    _montage(normal, np.asarray(contrast.normalize(jnp.asarray(shown))), 1)
    side = shown.shape[2]
    raw.set_yticks(side * (np.arange(len(lines)) + 0.5), EXPRESSIONS)
    raw.set_title("as they come", fontsize=10)
    normal.set_title("after local contrast normalisation", fontsize=10)
    figure.suptitle(faces.name, fontsize=11)
    return figure


def characters_figure(glyphs: Glyphs, seed: int = 0, columns: int = 18) -> Figure:
    """Return a figure of the first characters of a stream: a column each, a line after each deformation."""
    stages, labels = characters.show(
        characters.source(glyphs), characters.stream(seed), jnp.arange(columns, dtype=jnp.uint32)
    )
    title = f"{glyphs.name}: deformed one step after another (seed {seed})"
    return stages_figure(np.asarray(stages), [CHARACTERS[label] for label in np.asarray(labels)], title)


def stages_figure(stages: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Return a figure of characters of shape (n, stages, height, width): a column each, a line for every stage."""
    shown = stages.swapaxes(0, 1)
    figure = Figure(figsize=(0.5 * len(stages) + 1.2, 0.5 * len(shown) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    _montage(panel, shown, 255)
    side = shown.shape[2]
    panel.set_yticks(side * (np.arange(len(shown)) + 0.5), STAGES[: len(shown)])
    panel.set_xticks(side * (np.arange(len(stages)) + 0.5), names)
    panel.set_title(title, fontsize=11)
    return figure


def _montage(panel: Axes, images: np.ndarray, brightest: float) -> None:
    """Show images of shape (lines, columns, height, width) as one picture, white at `brightest`."""
    lines, columns, height, width = images.shape
    picture = images.swapaxes(1, 2).reshape(lines * height, columns * width)
    extent = (0, columns * width, lines * height, 0)
    panel.imshow(picture, cmap="gray", vmin=0, vmax=brightest, extent=extent, interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([])
    panel.tick_params(length=0, labelsize=9)
    for spine in panel.spines.values():
        spine.set_visible(False)
