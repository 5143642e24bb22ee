"""Two small checkpoints to be damaged, and what a good one of them holds."""

import hashlib
import io
import json
import os
import shutil
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from natgrad_paper.training.checkpoint import Checkpoint, Checkpoints, digest
from natgrad_paper.training.log import Mark
from natgrad_paper.training.loop import Position

IDENTITY = {"method": "ngd", "seed": 0, "settings": digest({"rate": 0.1}), "data": "abc"}
OLDER, NEWER = 5, 12


def trained(value):
    return {"w": jnp.full(3, value, jnp.float32)}, (jnp.asarray(7, jnp.int32), jax.random.key(3))


def checkpoint(iteration):
    return Checkpoint(Position(iteration, 1, 2.5, 3.5, 0.5, 9.0), Mark(10, "0" * 64), trained(iteration / 3))


def bits(tree):
    """Return every bit of a tree of arrays."""
    leaves = jax.tree.leaves(tree)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [
        np.asarray(jax.random.key_data(leaf) if key else leaf).tobytes()
        for leaf, key in zip(leaves, keys, strict=True)
    ]


@dataclass(frozen=True)
class Saved:
    """The checkpoints of a training, and the bytes of their files."""

    checkpoints: Checkpoints
    files: dict[str, bytes]
    """By name, the older first."""

    @classmethod
    def write(cls, directory):
        checkpoints = Checkpoints(directory / "ngd.0", IDENTITY, {"cores": 2})
        for iteration in (OLDER, NEWER):
            checkpoints.save(checkpoint(iteration))
        files = {path.name: path.read_bytes() for path in sorted(checkpoints.directory.iterdir())}
        return cls(checkpoints, files)

    @property
    def older(self):
        return self.checkpoints.directory / next(iter(self.files))

    @property
    def newest(self):
        return self.checkpoints.directory / list(self.files)[-1]

    @property
    def raw(self):
        """The bytes of the newest."""
        return self.files[self.newest.name]

    def contents(self):
        """Return the manifest and the arrays of the newest."""
        with np.load(io.BytesIO(self.raw)) as found:
            arrays = dict(found)
        return json.loads(arrays.pop("manifest").tobytes()), arrays

    def sign(self, manifest, arrays, iteration=NEWER):
        """Put a file in the place of the newest whose own hash is right."""
        stream = io.BytesIO()
        np.savez(stream, manifest=np.frombuffer(json.dumps(manifest).encode(), np.uint8), **arrays)
        raw = stream.getvalue()
        self.newest.unlink()
        name = f"{iteration:09d}.{hashlib.sha256(raw).hexdigest()}.npz"
        (self.checkpoints.directory / name).write_bytes(raw)

    def restore(self):
        """Undo all damage."""
        root = self.checkpoints.directory
        for path in root.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else os.unlink(path)
        for name, data in self.files.items():
            (root / name).write_bytes(data)

    def load(self):
        """Return what is found, and what is told."""
        told = []
        return self.checkpoints.load(trained(0.0), told.append), told


def same(found, iteration):
    wanted = checkpoint(iteration)
    return (found.position, found.log) == (wanted.position, wanted.log) and bits(found.trained) == bits(
        wanted.trained
    )
