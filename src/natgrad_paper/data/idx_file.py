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
LABELS = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}
MAGIC = 0x00000803
"""Two zeros, 8 for unsigned bytes, 3 for the number of axes."""
MNIST = {"train": (60_000, 28, 28), "test": (10_000, 28, 28)}
CLASSES = 10
LARGEST = 1 << 28
"""Bytes of pixels: MNIST has 47 million."""


def read(directory: Path) -> Images:
    """Return training and test pictures, pixels in [0, 1]; only a set of MNIST's shapes is called by its name."""
    if not directory.is_dir():
        raise UserError(f"{directory}: expected a directory with idx files, found none")
    pictures = {part: _bytes(_find(directory, name), 3) for part, name in FILES.items()}
    shapes = {part: found.shape for part, found in pictures.items()}
    if shapes["train"][1:] != shapes["test"][1:]:
        expected = f"pictures of {shapes['train'][1:]}, as for training"
        raise FieldError(str(directory), FILES["test"], expected, f"{shapes['test'][1:]}")
    name = "MNIST" if shapes == MNIST else f"pictures of {directory.name}"
    rows = (found.reshape(len(found), -1).astype(np.float32) / 255 for found in pictures.values())
    return Images(name, *rows)


def labels(directory: Path, images: Images) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of training and test pictures, one for each picture, from 0 to 9."""
    found = {part: _bytes(_find(directory, name), 1) for part, name in LABELS.items()}
    for part, pictures in (("train", images.train), ("test", images.test)):
        if len(found[part]) != len(pictures):
            expected = f"{len(pictures)} labels, one for each picture"
            raise FieldError(str(directory), LABELS[part], expected, len(found[part]))
        if found[part].max() >= CLASSES:
            raise FieldError(str(directory), LABELS[part], f"labels below {CLASSES}", int(found[part].max()))
    return found["train"].astype(np.int32), found["test"].astype(np.int32)


def _find(directory: Path, name: str) -> Path:
    """Return the file of that name, or the packed one."""
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise FieldError(str(directory), name, "this file, or the same with .gz", "neither")


def _bytes(path: Path, axes: int) -> np.ndarray:
    """Return a file's bytes, in an array of `axes` axes. The header is checked before they are read."""
    where, size, wanted = str(path), 4 + 4 * axes, MAGIC - 3 + axes
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            head = stream.read(size)
            if len(head) < size:
                raise FieldError(where, "header", f"{size} bytes", len(head))
            magic, *shape = struct.unpack(f">{1 + axes}I", head)
            if magic != wanted:
                raise FieldError(where, "magic number", f"{wanted:#010x}", f"{magic:#010x}")
            if min(shape) < 1 or math.prod(shape) > LARGEST:
                least = (1,) * axes
                raise FieldError(where, "shape", f"at least {least}, {LARGEST} bytes at most", tuple(shape))
            found = stream.read(math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{where}: expected a readable idx file, found none ({reason})") from None
    if len(found) != math.prod(shape):
        more = "more" if len(found) > math.prod(shape) else len(found)
        raise FieldError(where, "pixels" if axes > 1 else "labels", f"{math.prod(shape)} bytes", more)
    return np.frombuffer(found, np.uint8).reshape(shape)
