"""Files of pictures for tests: faces with the fields of the Toronto Face Database, and MNIST's format."""

import gzip
import struct

import numpy as np
import scipy.io

from natgrad_paper.data import idx_file

COUNT = 20


def tfd(**changes):
    """Return twelve faces with labels, eight without; fold f tests on the labelled faces f and f + 5."""
    folds = np.zeros((COUNT, 5), np.uint8)
    folds[:12] = 1
    for fold in range(5):
        folds[[fold, fold + 5], fold] = 3
        folds[[fold + 1], fold] = 2
    arrays = {
        "images": np.random.default_rng(0).integers(0, 256, (COUNT, 48, 48)).astype(np.uint8),
        "labs_ex": np.r_[np.arange(12) % 7 + 1, np.full(8, -1)].astype(np.int16)[:, None],
        "labs_id": np.full((COUNT, 1), -1, np.int16),
        "folds": folds,
    }
    arrays |= changes
    return {name: value for name, value in arrays.items() if value is not None}


def write_arrays(path, arrays):
    """Write arrays as `.npz` or `.mat`, by the ending; return the path."""
    np.savez(path, **arrays) if path.suffix == ".npz" else scipy.io.savemat(path, arrays, do_compression=True)
    return path


def small_file(path, **changes):
    """Write a file with the fields of the Toronto format and enough faces for the presets `smoke`; return the path."""
    rng = np.random.default_rng(0)
    folds = np.repeat([1, 2, 3, 0], [60, 20, 20, 40])[:, None].repeat(5, axis=1).astype(np.uint8)
    labels = np.where(folds[:, :1] > 0, np.arange(140)[:, None] % 7 + 1, -1).astype(np.int16)
    images = rng.integers(0, 256, (140, 48, 48)).astype(np.uint8)
    return write_arrays(path, {"images": images, "labs_ex": labels, "folds": folds} | changes)


def idx(images, magic=idx_file.MAGIC, shape=None):
    """Return the bytes of an idx file."""
    return struct.pack(">4I", magic, *(shape or images.shape)) + images.tobytes()


def pictures(count, side=6, seed=0):
    """Return random pictures."""
    return np.random.default_rng(seed).integers(0, 256, (count, side, side)).astype(np.uint8)


def write_idx(directory, train=None, test=None, packed=False):
    """Write both files of MNIST's format, from bytes where they are given; return the directory."""
    directory.mkdir(exist_ok=True)
    contents = (train or idx(pictures(9)), test or idx(pictures(4, seed=1)))
    for name, content in zip(idx_file.FILES.values(), contents, strict=True):
        path = directory / (name + ".gz" * packed)
        path.write_bytes(gzip.compress(content) if packed else content)
    return directory
