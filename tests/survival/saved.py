"""Two small checkpoints to be damaged, and what a good one of them holds."""

import json
import shutil
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from natgrad_paper.checkpoint import Checkpoint, Checkpoints, digest
from natgrad_paper.log import Mark
from natgrad_paper.train import Position

IDENTITY = {"method": "ngd", "seed": 0, "settings": digest({"rate": 0.1}), "data": "abc"}
OLDER, NEWER = 5, 12


def trained(value):
    return {"w": jnp.full(3, value, jnp.float32)}, (jnp.asarray(7, jnp.int32), jax.random.key(3))


def checkpoint(iteration):
    return Checkpoint(Position(iteration, 1, 0, 2.5, 0.5, 9.0), Mark(10, "0" * 64), trained(iteration / 3))


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
    """By name below the directory of the checkpoints."""

    @classmethod
    def write(cls, directory):
        checkpoints = Checkpoints(directory / "ngd.0", IDENTITY, {"cores": 2})
        for iteration in (OLDER, NEWER):
            checkpoints.save(checkpoint(iteration))
        root = checkpoints.directory
        files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        return cls(checkpoints, dict(sorted(files.items())))

    @property
    def newest(self):
        return self.checkpoints.directory / f"{NEWER:09d}"

    def names(self):
        """Return the files of the newest, by name below its directory."""
        return [
            name.partition("/")[2] for name, data in self.files.items() if int(name[:9]) == NEWER and data
        ]

    def bytes(self, name, iteration=NEWER):
        return self.files[f"{iteration:09d}/{name}"]

    def manifest(self):
        manifest = json.loads(self.bytes("manifest.json"))
        del manifest["sha256"]
        return manifest

    def sign(self, manifest):
        """Put a manifest in place whose own hash is right."""
        text = json.dumps({**manifest, "sha256": digest(manifest)}, indent=1)
        (self.newest / "manifest.json").write_text(text)

    def restore(self):
        """Undo all damage."""
        root = self.checkpoints.directory
        for path in root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, data in self.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
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
