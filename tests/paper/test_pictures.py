"""The pictures show the data, in the right places."""

import numpy as np
import pytest

from natgrad_paper.data import characters, glyphs, pictures
from natgrad_paper.data.labelled import EXPRESSIONS, Faces, Labelled

pytestmark = pytest.mark.usefixtures("fast_compile")


@pytest.fixture(scope="module")
def faces():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 48, 48)).astype(np.uint8)
    part = Labelled(images, (np.arange(20) % 7).astype(np.int32))
    return Faces("some faces", part, part, part, images)


def test_faces_before_and_after(faces):
    figure = pictures.faces_figure(faces, columns=3)
    raw, normal = (np.asarray(panel.images[0].get_array()) for panel in figure.axes)
    assert raw.shape == normal.shape == (7 * 48, 3 * 48)
    np.testing.assert_array_equal(raw[:48, :48], faces.train.images[0])
    np.testing.assert_array_equal(raw[48:96, 48:96], faces.train.images[8])
    # Six expressions have three faces, the last has two: its third place is grey.
    assert (raw[6 * 48 :, 96:] == 128).all()
    assert 0.4 < normal.mean() < 0.6
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(EXPRESSIONS)
    figure.canvas.draw()


def test_characters_stage_by_stage():
    figure = pictures.characters_figure(glyphs.embedded(), seed=3, columns=4)
    shown = np.asarray(figure.axes[0].images[0].get_array())
    assert shown.shape == (6 * 32, 4 * 32)
    source = characters.source(glyphs.embedded())
    images, labels = characters.draw(source, characters.stream(3), np.arange(4))
    np.testing.assert_allclose(shown[-32:, :32] / 255, images[0].reshape(32, 32), atol=1e-6)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == [
        glyphs.CHARACTERS[label] for label in np.asarray(labels)
    ]
    first = shown[:32, :32]
    assert (glyphs.embedded().images == first).all(axis=(1, 2)).any()
    figure.canvas.draw()
