"""Pictures out of logs, and errors in one line where they are damaged."""

import base64
import re

import numpy as np
import pytest
from synthetic import pictures, run_log, runs

from natgrad_paper.errors import FieldError
from natgrad_paper.report import images
from natgrad_paper.report.parts import Picture, Table


def shown(levels, labels=(), title="as they come"):
    levels = np.asarray(levels, np.uint8)
    return {
        "what": "data", "title": title, "labels": list(labels), "shape": list(levels.shape),
        "images": base64.b64encode(levels.tobytes()).decode(),
    }  # fmt: skip


def test_each_method_has_a_row_below_the_originals():
    found = runs(
        run_log("a", pictures=pictures(value=200)),
        run_log("b", order=2),
        run_log("c", order=3, pictures=pictures()),
    )
    table = images.reconstructed(found)
    assert [row[0] for row in table.rows] == ["original", "A", "C"]
    strip = table.rows[1][1]
    assert strip.image.shape == (28, 3 * 30)
    assert strip.image[0, 0] == 55  # the cases are mostly black: ink on white
    assert strip.image[0, 28] == 255
    assert strip.alt == "the same cases as A reconstructs them, seed 0"
    assert strip.address.startswith("data:image/png;base64,")
    assert images.reconstructed(runs(run_log())) is None


def test_other_cases_are_not_put_beside():
    other = pictures(side=14)
    table = images.reconstructed(
        runs(run_log("a", pictures=pictures()), run_log("b", order=2, pictures=other))
    )
    assert [row[0] for row in table.rows] == ["original", "A"]


def test_data_are_shown_stage_by_stage():
    bright = np.full((2, 3, 4, 4), 200)
    first, second = images.data(runs(run_log(pictures=(shown(bright), shown(bright, ["A", "b"])))))
    assert isinstance(first, Picture)
    assert first.image.shape == (8, 12)
    assert (first.image == 200).all()
    assert first.caption == "as they come"
    assert isinstance(second, Table)
    assert [row[0] for row in second.rows] == ["A", "b"]
    dark = images.data(runs(run_log(pictures=(shown(np.zeros((1, 1, 2, 2))),))))
    assert (dark[0].image == 255).all()
    assert images.data(runs(run_log())) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [3, 28, 28]}, "shape: expected [lines, columns, height, width], found [3, 28, 28]"),
        ({"shape": [1, 10**9, 28, 28]}, "shape: expected"),
        ({"shape": [1, True, 28, 28]}, "shape: expected"),
        ({"shape": [1, 2, 28, 28]}, "images: expected 1568 bytes, found 2352"),
        ({"images": "?"}, "images: expected bytes in base64"),
        ({"images": "é"}, "images: expected bytes in base64"),
        ({"images": None}, "images: expected"),
    ],
)
def test_damaged_pictures_are_named(change, words):
    original, made = pictures()
    with pytest.raises(FieldError, match=re.escape(words)) as refusal:
        images.reconstructed(runs(run_log(pictures=(original | change, made))))
    assert str(refusal.value).startswith("log of ngd, seed 0: pictures: ")
