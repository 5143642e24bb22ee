"""The stream of characters: the same whatever the batch, the distribution of what happens, and its sources."""

import hashlib
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from natgrad_paper.data import characters, glyphs
from natgrad_paper.errors import UserError

pytestmark = pytest.mark.usefixtures("fast_compile")

KEY = characters.stream(0)
LICENCES = {"SIL Open Font License, 1.1", "Apache License, Version 2.0"}


@pytest.fixture(scope="module")
def source():
    return characters.source(glyphs.embedded())


@pytest.fixture(scope="module")
def whole(source):
    images, labels = characters.draw(source, KEY, jnp.arange(512))
    return np.asarray(images), np.asarray(labels)


def test_shape_range_and_type(whole):
    images, labels = whole
    assert images.shape == (512, 1024)
    assert images.dtype == np.float32
    assert labels.dtype == np.int32
    assert images.min() == 0
    assert 0.99 < images.max() <= 1
    assert (images.max(axis=1) > 0).mean() > 0.99
    assert set(labels) == set(range(62))


def test_is_the_same_everywhere(whole):
    """What figure 2's logs were trained on: whole numbers, so the same bits on every machine."""
    pixels = np.round(255 * whole[0]).astype(np.uint8)
    assert (
        hashlib.sha256(pixels.tobytes() + whole[1].astype("<i4").tobytes()).hexdigest()
        == "926bd80a7e95a95788b39e5cded965ba424b82c0d7aacaba9c12e33141d3a53a"
    )


def test_every_stage_is_shown_from_the_glyph_to_what_is_drawn(source, whole):
    stages, labels = map(np.asarray, characters.show(source, KEY, jnp.arange(8)))
    assert stages.shape == (8, len(characters.STAGES), 32, 32)
    np.testing.assert_array_equal(labels, whole[1][:8])
    np.testing.assert_allclose(stages[:, -1].reshape(8, -1) / np.float32(255), whole[0][:8], atol=1e-6)
    for first, label in zip(stages[:, 0], labels, strict=True):
        own = glyphs.embedded().images[label * 201 : (label + 1) * 201]
        assert (own == first).all(axis=(1, 2)).any()


@pytest.mark.parametrize("size", [1, 7, 512])
def test_batch_size_and_order_do_not_matter(source, whole, size):
    chosen = np.random.default_rng(size).permutation(512)[:size]
    images, labels = characters.draw(source, KEY, jnp.asarray(chosen))
    np.testing.assert_array_equal(images, whole[0][chosen])
    np.testing.assert_array_equal(labels, whole[1][chosen])


def test_inside_another_program_it_is_the_same(source, whole):
    """As a training loop uses it: batches drawn within a scan."""

    @jax.jit
    def run(start):
        return jax.lax.scan(
            lambda i, _: (i + 8, characters.draw(source, KEY, i + jnp.arange(8, dtype=jnp.int32))),
            start,
            None,
            4,
        )

    last, (images, labels) = run(jnp.int32(16))
    assert last == 48
    np.testing.assert_array_equal(images.reshape(32, -1), whole[0][16:48])
    np.testing.assert_array_equal(labels.ravel(), whole[1][16:48])


def test_seeds_streams_and_indices_differ(source, whole):
    for key in (characters.stream(1), characters.stream(0, 1)):
        images, _ = characters.draw(source, key, jnp.arange(512))
        assert (np.abs(images - whole[0]).max(axis=1) > 0).mean() > 0.99
    assert len(np.unique(whole[0], axis=0)) > 500


def test_half_the_side_is_the_mean_of_four_pixels(source, whole):
    images, labels = characters.draw(source, KEY, jnp.arange(64), side=16)
    means = whole[0][:64].reshape(64, 16, 2, 16, 2).mean(axis=(2, 4)).reshape(64, 256)
    np.testing.assert_allclose(images, means, atol=1e-6)
    np.testing.assert_array_equal(labels, whole[1][:64])
    with pytest.raises(ValueError, match="side must be 32 or 16, not 8"):
        characters.draw(source, KEY, jnp.arange(2), side=8)


def test_without_the_pinch(source, whole):
    images, _ = characters.draw(source, KEY, jnp.arange(64), pinched=False)
    changed = np.abs(images - whole[0][:64]).max(axis=1) > 0
    assert 0.8 < changed.mean() <= 1


def test_classes_follow_their_weights(source):
    weights = np.zeros((512, 62), np.int32)
    weights[:256, 3], weights[256:, 60:] = 1, 1
    _, labels = characters.draw(source, KEY, jnp.arange(512), jnp.asarray(weights))
    assert set(np.asarray(labels[:256])) == {3}
    assert set(np.asarray(labels[256:])) == {60, 61}
    _, labels = characters.draw(source, KEY, jnp.arange(512), jnp.asarray(np.r_[3000, [0] * 60, 1000]))
    share = float((labels == 0).mean())
    assert share == pytest.approx(0.75, abs=5 * np.sqrt(0.75 * 0.25 / 512))


@pytest.fixture(scope="module")
def drawn():
    keys = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(jnp.arange(40_000))
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(characters.traits))(keys))


def test_traits_have_the_stated_distribution(drawn):
    """Compared with the same recipe drawn in floating point."""
    rng = np.random.default_rng(0)
    c = rng.uniform(0, 0.7, (5, 40_000))

    def close(ours, theirs):
        spread = np.std(theirs) / np.sqrt(len(theirs))
        assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=6 * spread)
        assert np.std(ours) == pytest.approx(np.std(theirs), rel=0.04)
        np.testing.assert_allclose(
            [ours.min(), ours.max()], [theirs.min(), theirs.max()], atol=0.05 * np.ptp(theirs)
        )

    close(drawn.angle / 65536, rng.uniform(0, c[0]))
    close(drawn.sign, rng.choice([-1, 1], 40_000))
    for factor, ours in ((1, drawn.a), (1, drawn.e), (0, drawn.b), (0, drawn.d)):
        close(ours / 65536 - factor, rng.uniform(-0.4 * c[2], 0.4 * c[2]))
    for ours in (drawn.tx, drawn.ty):
        close(ours / 65536, rng.uniform(-4.5 * c[2], 4.5 * c[2]))
    close(drawn.level, np.floor(10 * c[3]))
    close(drawn.field, rng.integers(0, 51, 40_000))
    close(drawn.pinch / 128, rng.uniform(-c[4], 0.7 * c[4]))


def test_erosions_and_dilations_have_the_stated_chances(drawn):
    """Integrated over c: erode with chance E/(D+E+1), dilate with D/(D+E+1)."""
    c = (np.arange(70_000) + 0.5) / 100_000
    erosions, dilations = np.ceil(5 * c), np.ceil(9 * c)
    for direction, count, most in ((-1, erosions, 4), (1, dilations, 7)):
        chance = (count / (erosions + dilations + 1)).mean()
        taken = drawn.direction == direction
        assert taken.mean() == pytest.approx(chance, abs=0.012)
        assert drawn.element[taken].min() == 0
        assert drawn.element[taken].max() == most - 1
        for element in range(most):
            share = np.where(element < count, 1 / (erosions + dilations + 1), 0).mean()
            assert (drawn.element[taken] == element).sum() / 40_000 == pytest.approx(share, abs=0.008)


def test_embedded_glyphs_have_their_provenance():
    embedded = glyphs.embedded()
    assert embedded.images.shape == (201 * 62, 32, 32)
    assert (embedded.counts == 201).all()
    assert embedded.images.reshape(-1, 1024).max(axis=1).min() > 0
    with np.load(Path(glyphs.__file__).with_name("glyphs.npz")) as archive:
        assert set(archive["font_licence"].tolist()) == LICENCES
        assert len(archive["font_names"]) == 201
        assert "@fontsource" in str(archive["provenance"])


def plain(**changes):
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.integers(1, 256, (124, 32, 32)).astype(np.uint8),
        "labels": np.tile(np.arange(62), 2)[::-1].astype(np.uint8),
    }
    arrays |= changes
    return {name: value for name, value in arrays.items() if value is not None}


@pytest.mark.parametrize("suffix", ["npz", "mat"])
def test_other_sources_are_read(tmp_path, suffix):
    path, arrays = tmp_path / f"some.{suffix}", plain()
    np.savez(path, **arrays) if suffix == "npz" else scipy.io.savemat(path, arrays)
    read = glyphs.read(path)
    assert read.name == path.name
    assert (read.counts == 2).all()
    np.testing.assert_array_equal(read.images[[0, 1]], arrays["images"][[61, 123]])
    assert read.sha256() != glyphs.embedded().sha256()
    assert read.describe()["glyphs"] == [124, 32, 32]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 61), max_size=40), st.randoms(use_true_random=False))
def test_sorting_loses_nothing(extra, random):
    labels = [*range(62), *extra]
    random.shuffle(labels)
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None]
    sorted_ = glyphs.sort("x", images, np.array(labels))
    for label, (start, count) in enumerate(zip(sorted_.starts, sorted_.counts, strict=True)):
        ours = sorted_.images[start : start + count].ravel().tolist()
        assert ours == [i for i, other in enumerate(labels) if other == label]


dim = plain()["images"].copy()
dim[5] = 0
BAD = {
    "no labels": (plain(labels=None), "labels: expected shape (124,), found only images"),
    "no images": (plain(images=None), "images: expected an array of images, found only labels"),
    "small images": (plain(images=np.ones((124, 28, 28), np.uint8)), "found shape (124, 28, 28)"),
    "one number": (plain(images=np.uint8(3)), "images: expected shape (n, 32, 32), uint8"),
    "no rows": (
        plain(images=np.ones((0, 32, 32), np.uint8)),
        "n from 62 to 1000000, found shape (0, 32, 32)",
    ),
    "floats": (plain(images=plain()["images"] / 255), "images: expected shape (n, 32, 32), uint8"),
    "fewer labels": (plain(labels=np.arange(62)), "labels: expected shape (124,), found shape"),
    "label 62": (plain(labels=plain()["labels"] + 1), "whole numbers 0 to 61, found 62 at row 0"),
    "negative": (
        plain(labels=plain()["labels"].astype(int) - 1),
        "whole numbers 0 to 61, found -1 at row 61",
    ),
    "not a number": (plain(labels=np.full(124, np.nan)), "whole numbers 0 to 61, found nan at row 0"),
    "halves": (plain(labels=plain()["labels"] + 0.5), "whole numbers 0 to 61, found 61.5 at row 0"),
    "texts": (plain(labels=np.array(["a"] * 124)), "labels: expected real numbers, found <U1"),
    "a class missing": (plain(labels=np.zeros(124, int)), "found no 1 (the character 1)"),
    "an empty picture": (plain(images=dim), "images: expected ink in every picture, found none in picture 5"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_one_line(tmp_path, case):
    arrays, words = BAD[case]
    path = tmp_path / "some.npz"
    np.savez(path, **arrays)
    with pytest.raises(UserError) as caught:
        glyphs.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["absent", "text", "cut", "objects"])
def test_bad_files_are_one_line(tmp_path, kind):
    path = tmp_path / "some.npz"
    if kind == "text":
        path.write_bytes(b"PK\x03\x04 but no archive")
    if kind == "cut":
        np.savez(path, **plain())
        path.write_bytes(path.read_bytes()[:60_000])
    if kind == "objects":
        np.savez(path, images=np.array([{}], object), labels=np.zeros(1))
    with pytest.raises(UserError) as caught:
        glyphs.read(path)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_files(users_characters):
    for path in users_characters:
        read = glyphs.read(path)
        images, labels = characters.draw(characters.source(read), KEY, jnp.arange(64))
        assert np.isfinite(images).all()
        assert labels.max() < 62


def test_the_embedded_glyphs_are_what_the_tool_makes_of_the_fonts(users_characters, tmp_path):
    fonts = [path for path in users_characters if "fonts" in path.name]
    if not fonts:
        pytest.skip("NATGRAD_DATA: no fonts there")
    made, tool = tmp_path / "glyphs.npz", Path(__file__).parents[3] / "tools" / "embed_glyphs.py"
    runpy.run_path(str(tool))["pack"](fonts[0], made)
    with np.load(made) as ours, np.load(Path(glyphs.__file__).with_name("glyphs.npz")) as committed:
        assert set(ours) == set(committed)
        for name in ours:
            np.testing.assert_array_equal(ours[name], committed[name])
