"""One of several processes that share a stream: draws every so-manieth block of each course, and writes them.

python stream_part.py PRESET PART PARTS OUT
"""

import sys
from pathlib import Path

import numpy as np

from natgrad_paper import config
from natgrad_paper.data import characters, glyphs
from natgrad_paper.order.config import Config
from natgrad_paper.order.courses import Drifting, Examples, Plain, Replaced

COURSES = (Plain(), Replaced(2, 1), Drifting())


def blocks(settings, numbers):
    """Return inputs and labels of these blocks of every course, in a process that has drawn nothing yet."""
    examples = Examples(settings, characters.source(glyphs.embedded()), 0)
    return {
        f"{course} {number} {part}": np.asarray(array)
        for course in COURSES
        for number in numbers
        for part, array in zip(("inputs", "labels"), examples.block(course, number), strict=True)
    }


if __name__ == "__main__":
    preset, part, parts, out = sys.argv[1:]
    settings = config.load(Config, Path(preset))
    np.savez(out, **blocks(settings, range(settings.stream.blocks)[int(part) :: int(parts)]))
