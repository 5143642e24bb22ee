"""Bases and eigenvectors from products alone, against dense float64 ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad import orthogonal
from natgrad.orthogonal import eigenvectors, spread

RNG = np.random.default_rng(0)


def rotation(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def orthonormal(columns):
    return orthogonal.orthonormal(columns.T[None])[0].T


def iterated(matrix, basis, turns):
    return tuple(part[0] for part in orthogonal.iterated(matrix[None], basis[None], turns))


def apart(basis):
    """Return the largest entry of BᵀB − I, computed in float64."""
    basis = np.asarray(basis, np.float64)
    return np.abs(basis.T @ basis - np.eye(basis.shape[1])).max()


SPECTRA = {
    "eight decades": np.geomspace(1, 1e-8, 48),
    "forty decades": np.geomspace(1e20, 1e-20, 48),
    "rank three": np.r_[3.0, 2.0, 1.0, np.zeros(45)],
    "rank one": np.r_[5.0, np.zeros(47)],
    "all equal": np.ones(48),
    "zeros": np.zeros(48),
    "tiny": 1e-30 / np.arange(1, 49),
    "huge": 1e30 / np.arange(1, 49) ** 2,
}


def test_orthonormal_is_the_q_of_qr():
    columns = RNG.normal(size=(30, 12))
    q, r = np.linalg.qr(columns)
    np.testing.assert_allclose(orthonormal(jnp.asarray(columns)), q * np.sign(np.diag(r)), atol=1e-12)


def test_orthonormal_is_twice_normalized_also_where_a_square_is_too_small():
    """The first time makes a row long enough to have a square."""
    short = 0.5 * np.sqrt(np.finfo(np.float64).tiny)
    found = orthonormal(jnp.asarray(short * rotation(5)[:, :3]))
    np.testing.assert_allclose(found, rotation(5)[:, :3], atol=1e-12)
    np.testing.assert_array_equal(orthonormal(jnp.zeros((5, 2))), 0)


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5])
def test_orthonormal_in_float32_of_columns_that_are_nearly_parallel(condition):
    spectrum = np.geomspace(1, 1 / condition, 40)
    columns = (rotation(90)[:, :40] * spectrum) @ rotation(40, 1)
    assert apart(orthonormal(jnp.asarray(columns, jnp.float32))) < 2e-6


@pytest.mark.parametrize("rank", [48, 16])
@pytest.mark.parametrize("name", SPECTRA)
def test_iterated_stays_orthonormal_in_float32(name, rank):
    size = len(SPECTRA[name])
    vectors = rotation(size)
    matrix = jnp.asarray((vectors * SPECTRA[name]) @ vectors.T, jnp.float32)
    basis = jnp.asarray(spread(size, rank, np.float32))
    turn = jax.jit(lambda basis: iterated(matrix, basis, 2))
    for _ in range(20):
        basis, values = turn(basis)
        assert apart(basis) < 5e-6
        exact = np.asarray(basis, np.float64)
        wanted = np.sum(exact * (np.asarray(matrix, np.float64) @ exact), axis=0)
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=2e-6 * SPECTRA[name].max())
    if name == "zeros":
        np.testing.assert_array_equal(values, 0)
        np.testing.assert_allclose(basis, spread(size, rank, np.float32), atol=1e-5)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_iterated_is_so_many_turns_of_product_and_qr(turns, size):
    vectors, spectrum = rotation(9), size * 0.8 ** np.arange(9)
    matrix, basis = (vectors * spectrum) @ vectors.T, spread(9, 4, np.float64)
    found, values = iterated(jnp.asarray(matrix), jnp.asarray(basis), turns)
    basis = basis[:, np.argsort(-np.sum(basis * (matrix @ basis), axis=0))]
    for _ in range(turns):
        q, r = np.linalg.qr(matrix @ basis)
        basis = q * np.sign(np.diag(r))
    np.testing.assert_allclose(found, basis, atol=1e-12)
    np.testing.assert_allclose(values, np.sum(basis * (matrix @ basis), axis=0), rtol=1e-12)


def test_iterated_finds_the_foremost_eigenvectors():
    vectors, spectrum = rotation(40), 2.0 ** -np.arange(40)
    basis = jnp.asarray(spread(40, 6, np.float64))
    basis, values = iterated(jnp.asarray((vectors * spectrum) @ vectors.T), basis, 60)
    np.testing.assert_allclose(values, spectrum[:6], rtol=1e-9)
    np.testing.assert_allclose(np.abs(vectors[:, :6].T @ basis), np.eye(6), atol=1e-9)


def test_eigenvalues_that_changed_places_need_no_rounds():
    """Columns are sorted beforehand: the exact eigenvectors in the wrong order are right after a single round."""
    vectors, spectrum = rotation(12), 1.5 ** -np.arange(12)
    matrix, wrong = jnp.asarray((vectors * spectrum) @ vectors.T), jnp.asarray(vectors[:, [2, 0, 3, 1]])
    _, values = iterated(matrix, wrong, 1)
    np.testing.assert_allclose(values, spectrum[:4], rtol=1e-9)


def test_few_samples_and_a_drifting_matrix_leave_the_basis_orthonormal():
    """Two hundred turns in float32, each of a factor with a handful of new samples, of lengths over six decades."""
    rng = np.random.default_rng(3)
    matrix, basis = np.zeros((60, 60)), jnp.asarray(spread(60, 24, np.float32))
    turn = jax.jit(lambda matrix, basis: iterated(matrix, basis, 1)[0])
    for number in range(200):
        samples = rng.normal(size=(3, 60)) * 10 ** rng.uniform(-3, 3)
        matrix = 0.7 * matrix + samples.T @ samples
        basis = turn(jnp.asarray(matrix, jnp.float32), basis)
        assert apart(basis) < 5e-6, number


@pytest.mark.parametrize(("length", "count"), [(1, 1), (7, 7), (40, 9)])
def test_spread_is_orthonormal_and_has_no_zeros(length, count):
    columns = spread(length, count, np.float64)
    assert apart(columns) < 1e-12
    assert np.abs(columns).max(axis=1).min() > 0.01
    if length > 7:
        assert set(np.sign(columns[:, 0])) == {-1, 1}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["any", "near a multiple of I", "parallel", "diagonal", "half", "zeros"])
def test_eigenvectors_of_small_matrices(size, kind):
    root = RNG.normal(size=(size, size))
    matrix = {
        "any": root + root.T,
        "near a multiple of I": np.eye(size) + 1e-9 * (root + root.T),
        "parallel": np.ones((size, size)) - 1e-7 * (1 - np.eye(size)),
        "diagonal": np.diag(np.arange(size, 0.0, -1)),
        "half": np.eye(size) / 2 + 0.5,
        "zeros": np.zeros((size, size)),
    }[kind]
    values, vectors = map(np.asarray, eigenvectors(jnp.asarray(matrix)))
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(matrix), atol=1e-14)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(size), atol=1e-14)
    np.testing.assert_allclose(vectors @ np.diag(values) @ vectors.T, matrix, atol=1e-14)
    if kind in ("diagonal", "zeros") and size <= orthogonal.SMALL:
        np.testing.assert_array_equal(vectors, np.eye(size))


def test_eigenvectors_of_small_matrices_need_no_lapack():
    for size in (1, 2, 3):
        lowered = jax.jit(eigenvectors).lower(jnp.eye(size))
        assert "lapack" not in lowered.as_text().lower()
    assert "lapack" in jax.jit(eigenvectors).lower(jnp.eye(4)).as_text().lower()


def test_two_rows_take_one_rotation_and_three_take_a_few_sweeps():
    rotations = [str(jax.make_jaxpr(eigenvectors)(jnp.eye(size))).count("rsqrt") for size in (1, 2, 3)]
    assert rotations == [0, 1, 3 * orthogonal.SWEEPS]


@pytest.mark.parametrize("entries", [(1.0, 0.3, 2.0), (2.0, 0.3, 1.0), (1.0, -0.3, 2.0), (1.0, 0.5, 1.0)])
def test_a_rotation_is_by_an_eighth_of_a_turn_at_most(entries):
    """Of the two angles that make the entry 0 it is the smaller one: eigenvalues keep their order, and sweeps end."""
    a, b, c = entries
    matrix = jnp.asarray([[a, b], [b, c]])
    turn = np.asarray(orthogonal._rotation(matrix, 0, 1))
    np.testing.assert_allclose((turn.T @ matrix @ turn)[0, 1], 0, atol=1e-15)
    assert abs(turn[0, 1]) <= turn[0, 0] + 1e-15


def test_a_nan_is_not_hidden():
    values, _ = eigenvectors(jnp.asarray([[1.0, jnp.nan], [jnp.nan, 1.0]]))
    assert not np.isfinite(values).any()
