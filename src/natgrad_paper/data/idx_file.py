"""MNIST, or other pictures in its format: a directory with idx files, packed or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from natgrad_paper.data.images import Images
from natgrad_paper.errors import FieldError, UserError

FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
MAGIC = 0x00000803
"""Two zeros, 8 for unsigned bytes, 3 for the number of axes."""
MNIST = {"train": (60_000, 28, 28), "test": (10_000, 28, 28)}
LARGEST = 1 << 28
"""Bytes of pixels: MNIST has 47 million."""


def read(directory: Path) -> Images:
    """Return training and test pictures, pixels in [0, 1]; only a set of MNIST's shapes is called by its name."""
    if not directory.is_dir():
        raise UserError(f"{directory}: expected a directory with idx files, found none")
    pictures = {part: _pictures(_find(directory, name)) for part, name in FILES.items()}
    shapes = {part: found.shape for part, found in pictures.items()}
    if shapes["train"][1:] != shapes["test"][1:]:
        expected = f"pictures of {shapes['train'][1:]}, as for training"
        raise FieldError(str(directory), FILES["test"], expected, f"{shapes['test'][1:]}")
    name = "MNIST" if shapes == MNIST else f"pictures of {directory.name}"
    rows = (found.reshape(len(found), -1).astype(np.float32) / 255 for found in pictures.values())
    return Images(name, *rows)


def _find(directory: Path, name: str) -> Path:
    """Return the file of that name, or the packed one."""
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise FieldError(str(directory), name, "this file, or the same with .gz", "neither")


def _pictures(path: Path) -> np.ndarray:
    """Return a file's pictures as bytes of shape (n, height, width). The header is checked before pixels are read."""
    where = str(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            head = stream.read(16)
            if len(head) < 16:
                raise FieldError(where, "header", "16 bytes", len(head))
            magic, *shape = struct.unpack(">4I", head)
            if magic != MAGIC:
                raise FieldError(where, "magic number", f"{MAGIC:#010x}", f"{magic:#010x}")
            if min(shape) < 1 or math.prod(shape) > LARGEST:
                raise FieldError(where, "shape", f"at least (1, 1, 1), {LARGEST} bytes at most", tuple(shape))
            pixels = stream.read(math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{where}: expected a readable idx file, found none ({reason})") from None
    if len(pixels) != math.prod(shape):
        more = "more" if len(pixels) > math.prod(shape) else len(pixels)
        raise FieldError(where, "pixels", f"{math.prod(shape)} bytes", more)
    return np.frombuffer(pixels, np.uint8).reshape(shape)
