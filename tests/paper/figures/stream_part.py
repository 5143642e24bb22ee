"""One of several processes that share a stream: draws every so-manieth block of each source, and writes them.

python stream_part.py PART PARTS OUT [FIELD=VALUE …]
"""

import sys

import numpy as np

from natgrad_paper import figures
from natgrad_paper.data import characters, glyphs
from natgrad_paper.figures.order.streams import Drifting, Examples, Plain, Replaced
from natgrad_paper.training.settings import build, changed, overrides


def blocks(settings, numbers):
    """Return inputs and labels of these blocks of every source, in a process that has drawn nothing yet."""
    examples = Examples(settings, characters.source(glyphs.embedded()), 0)
    sources = {"plain": Plain(examples), "replaced": Replaced(examples, 2, 1), "drifting": Drifting(examples)}
    size = settings.stream.block
    return {
        f"{name} {number} {part}": np.asarray(array)
        for name, source in sources.items()
        for number in numbers
        for part, array in zip(("inputs", "labels"), source.block(number * size, size), strict=True)
    }


if __name__ == "__main__":
    part, parts, out, *changes = sys.argv[1:]
    order = figures.load("order")
    settings = build(
        order.settings, changed(order.settings, order.presets()["smoke"].changes, overrides(changes)), ""
    )
    count = settings.stream.updates // settings.stream.block
    np.savez(out, **blocks(settings, range(count)[int(part) :: int(parts)]))
