"""What a full and a read-only disk do to a training's files; run in a mount namespace of its own.

unshare -rm python small_disk.py DIRECTORY
"""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from saved import IDENTITY, bits

from natgrad_paper.training import request
from natgrad_paper.training.checkpoint import Checkpoint, Checkpoints
from natgrad_paper.training.log import Mark, Writer
from natgrad_paper.training.loop import Position

SIZE = 600_000


def trained(seed):
    """About a sixth of the disk, which no compression makes smaller."""
    return {"w": jax.random.normal(jax.random.key(seed), (SIZE // 24,))}, jnp.zeros(())


def refusal(action):
    """Return (number, words, file) of the machine's refusal, or None."""
    try:
        action()
    except OSError as problem:
        return problem.errno, problem.strerror, problem.filename
    return None


def fill(path):
    """Leave no more than a page of the disk."""
    with path.open("wb", buffering=0) as stream:
        while refusal(lambda: stream.write(bytes(4096))) is None:
            pass


def asked(seeds):
    return request.Request(experiment="e", preset="p", methods=("m",), seeds=range(seeds), settings={})


def main(directory):
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(directory)], check=True)
    checkpoints = Checkpoints(directory / "checkpoints", IDENTITY, {})

    def save(iteration):
        checkpoints.save(Checkpoint(Position(iteration), Mark(0, ""), trained(iteration)))

    def newest():
        """Return the iteration of the checkpoint that would be taken, if it is whole, and what else lies about."""
        found = checkpoints.load(trained(0), print)
        whole = bits(found.trained) == bits(trained(found.position.iteration))
        return found.position.iteration if whole else None, sorted(
            p.name for p in checkpoints.directory.glob(".*")
        )

    request.write(directory, asked(1))
    report = {"first": (refusal(lambda: save(1)), newest())}
    log = Writer(directory / "logs" / "ngd.0.jsonl", {})
    fill(directory / "filler")
    report["full"] = (refusal(lambda: save(2)), newest())
    report["full log"] = refusal(lambda: [log.write({"record": "x" * 50}) for _ in range(200)])
    log.__exit__(None, None, None)
    report["full request"] = (
        refusal(lambda: request.write(directory, asked(9999))),
        len(request.read(directory).seeds),
    )
    (directory / "filler").unlink()
    report["room again"] = (refusal(lambda: save(3)), newest())
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    report["read-only"] = (refusal(lambda: save(4)), newest())
    report["read-only log"] = refusal(lambda: Writer(directory / "logs" / "sgd.0.jsonl", {}))
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
