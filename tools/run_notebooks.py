"""Run the notebooks, and keep what they print and draw: the site and code hosts show them with their outputs.

    python tools/run_notebooks.py                  # all of them
    python tools/run_notebooks.py stubborn.ipynb   # one

A cell's output is what it prints, and the pictures it shows. The tests run the same cells with `cells` and `run`.
"""

import base64
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

FOLDER = Path(__file__).parents[1] / "notebooks"


def cells(path: Path) -> list[str]:
    """Return the code of a notebook, cell by cell."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(path: Path) -> Iterator[tuple[str, list[bytes]]]:
    """Run a notebook in its own folder; yield, cell by cell, what it printed and the pictures it drew."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    scope: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(path.parent):
        for number, code in enumerate(cells(path), start=1):
            printed, pictures = io.StringIO(), []
            with contextlib.redirect_stdout(printed):
                exec(compile(code, f"{path.name}, cell {number}", "exec"), scope)
            for figure in plt.get_fignums():
                file = io.BytesIO()
                plt.figure(figure).savefig(file, format="png", dpi=90)
                pictures.append(file.getvalue())
            plt.close("all")
            yield printed.getvalue(), pictures


def fill(path: Path) -> None:
    """Write what a notebook prints and draws into it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, (text, pictures)) in enumerate(zip(code, run(path), strict=True), start=1):
        cell["execution_count"] = number
        cell["outputs"] = []
        if text:
            lines = text.splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": lines})
        for picture in pictures:
            data = {"image/png": base64.b64encode(picture).decode(), "text/plain": ["a picture"]}
            cell["outputs"].append({"output_type": "display_data", "data": data, "metadata": {}})
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for chosen in sys.argv[1:] or sorted(path.name for path in FOLDER.glob("*.ipynb")):
        fill(FOLDER / Path(chosen).name)
        print(f"{chosen}: run")
