"""The Curves generator: what it draws, its statistics, and that it is a pure function of its seed."""

import numpy as np
import pytest

from natgrad_paper.data import curves


@pytest.fixture(scope="module")
def images():
    return curves.generate()


def test_has_the_size_and_range_of_the_original(images):
    assert images.name == "Curves (regenerated)"
    assert images.train.shape == (20_000, 784)
    assert images.test.shape == (10_000, 784)
    for part in (images.train, images.test):
        assert part.dtype == np.float32
        assert part.min() == 0
        assert 0.9 < part.max() <= 1


def test_has_the_statistics_of_the_original(images):
    assert images.train.mean() == pytest.approx(0.044, abs=0.001)
    centered = images.train - images.train.mean(axis=0)
    variances = np.linalg.eigvalsh(centered.T @ centered / len(centered))
    assert variances[:-18].sum() == pytest.approx(5.9, abs=0.1)


def test_is_the_same_everywhere(images):
    """The hash that logs and figures carry, so that anyone can tell whether they have the same pixels."""
    assert images.sha256() == "4d58f722e0d799a7f86d5080e6e636f3a155a677f5597c5362eb0f32717418d4"


def test_fewer_images_are_the_first_of_more(images):
    few = curves.generate(train=1500, test=10)
    np.testing.assert_array_equal(few.train, images.train[:1500])
    np.testing.assert_array_equal(few.test, images.test[:10])


def test_seeds_and_streams_differ():
    first, second = curves.generate(0, 20, 20), curves.generate(1, 20, 20)
    assert first.sha256() != second.sha256()
    assert not np.array_equal(first.train, first.test)


def test_points_are_spread():
    points = curves.random_triples(0, 0, 20_000)
    assert points.min() >= 2
    assert points.max() <= 26
    gaps = np.diff(points[..., 0], axis=1)
    assert gaps.min() >= 2
    # Uniform given the gaps: the middle of three sorted uniforms on [2, 22], moved by 2.
    assert points[:, 1, 0].mean() == pytest.approx(14, abs=0.1)
    assert points[:, 0, 0].mean() == pytest.approx(2 + 20 / 4, abs=0.1)


def test_curve_passes_its_three_points():
    points = curves.random_triples(3, 0, 50)
    np.testing.assert_allclose(curves.quadratic(points, np.array([0.0, 1.0, 2.0])), points, atol=1e-12)


def test_trace_is_equally_spaced_on_the_curve():
    points = curves.random_triples(4, 0, 50)
    traced, length = curves.trace(points)
    dense = curves.quadratic(points, np.linspace(0, 2, 4001))
    true_length = np.linalg.norm(np.diff(dense, axis=1), axis=-1).sum(axis=1)
    np.testing.assert_allclose(length, true_length, rtol=2e-3)
    steps = np.linalg.norm(np.diff(traced, axis=1), axis=-1)
    np.testing.assert_allclose(steps, np.broadcast_to(length[:, None] / 120, steps.shape), rtol=0.1)
    distance = np.linalg.norm(traced[0, :, None] - dense[0, None], axis=-1).min(axis=1)
    assert distance.max() < 0.02


def test_ink_lies_on_the_curve():
    points = curves.random_triples(5, 0, 20)
    pictures = curves.draw(points).reshape(-1, 28, 28)
    for triple, picture in zip(points, pictures, strict=True):
        for x, y in triple:
            # Pixel (i, j) covers [j, j + 1] × [i, i + 1]; at the ends the line is fainter.
            assert picture[int(y), int(x)] > 0.1
        line, column = np.nonzero(picture)
        curve = curves.quadratic(triple[None], np.linspace(0, 2, 400))[0]
        centers = np.stack([column, line], axis=-1) + 0.5
        distance = np.linalg.norm(centers[:, None] - curve[None], axis=-1).min(axis=1)
        assert distance.max() < 4.3  # one pixel of sharing and two of blur, across the diagonal
