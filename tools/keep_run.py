"""Put a finished run among the results: `python tools/keep_run.py runs/curves-small results/figure3-x`.

What is kept is what cannot be made again: the logs, every byte of them, in one archive, and what was asked for
(`run.json`). The figure is kept with few colors, for those who only look. Pages and tables follow from the logs.
The README of a result is written by hand; `tools/fill_numbers.py` puts the numbers in.
"""

import gzip
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

WIDTH, COLORS = 960, 64


def logs(run: Path) -> dict[str, bytes]:
    """Return the logs of a run by their names, unpacked."""
    found = {}
    for path in sorted((run / "logs").glob("*.jsonl*")):
        packed = path.suffix == ".gz"
        found[path.name.removesuffix(".gz")] = (
            gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        )
    return found


def pack(found: dict[str, bytes], archive: Path) -> None:
    """Write files into one archive, which depends on nothing but their names and bytes."""
    with (
        archive.open("wb") as stream,
        lzma.open(stream, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as files,
    ):
        for name, content in found.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))


def shrink(picture: Path, target: Path) -> None:
    """Write a picture smaller, with few colors."""
    from PIL import Image

    whole = Image.open(picture).convert("RGB")
    if whole.width > WIDTH:
        whole = whole.resize((WIDTH, whole.height * WIDTH // whole.width), Image.Resampling.LANCZOS)
    few = whole.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(target, optimize=True)


def keep(run: Path, target: Path) -> None:
    """Keep a run in a folder of the results."""
    target.mkdir(parents=True, exist_ok=True)
    pack(logs(run), target / "logs.tar.xz")
    asked = (run / "run.json").read_text(encoding="utf-8")
    path = json.loads(asked).get("data", "")
    # Where the data lay is of no use elsewhere.
    named = asked.replace(json.dumps(path), json.dumps(Path(path).name), 1)
    (target / "run.json").write_text(named, encoding="utf-8")
    pictures = list(run.glob("*.png"))
    if len(pictures) == 1:
        shrink(pictures[0], target / "figure.png")


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
