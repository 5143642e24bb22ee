"""The networks of the experiments and how they start."""

import jax
import jax.numpy as jnp
import numpy as np

from natgrad_paper.training.models import Autoencoder, Classifier, ConvNet, Recurrent, sparse_init

PAPER = Autoencoder((784, 400, 200, 100, 50, 25, 6))


def parameter_count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_has_the_papers_parameters():
    assert PAPER.units == (784, 400, 200, 100, 50, 25, 6, 25, 50, 100, 200, 400, 784)
    params = PAPER.init(0)
    assert parameter_count(params) == 842_340
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}


def test_code_is_linear_and_the_rest_sigmoid():
    model = Autoencoder((3, 4, 2))
    params = model.init(1)
    inputs = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    first, second, third, fourth = ((layer["weights"], layer["biases"]) for layer in params)
    hidden = jax.nn.sigmoid(inputs @ first[0] + first[1])
    code = hidden @ second[0] + second[1]
    hidden = jax.nn.sigmoid(code @ third[0] + third[1])
    np.testing.assert_allclose(model(params, inputs), hidden @ fourth[0] + fourth[1], rtol=1e-6)


def test_rectified_units_start_as_pytorchs_layers_do():
    model = Autoencoder((3, 400, 2), "relu")
    params = model.init(1)
    for layer, fan_in in zip(params, model.units, strict=False):
        for values in layer.values():
            assert abs(values).max() <= fan_in**-0.5
        assert layer["weights"].std() > 0.5 * fan_in**-0.5
    inputs = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    first, second, third, fourth = ((layer["weights"], layer["biases"]) for layer in params)
    code = np.maximum(inputs @ first[0] + first[1], 0) @ second[0] + second[1]
    outputs = np.maximum(code @ third[0] + third[1], 0) @ fourth[0] + fourth[1]
    np.testing.assert_allclose(model(params, inputs), outputs, rtol=1e-5, atol=1e-6)


def test_each_unit_has_fifteen_incoming_weights_at_most():
    for layer, fan_in in zip(PAPER.init(0), PAPER.units, strict=False):
        counts = np.count_nonzero(layer["weights"], axis=0)
        assert counts.max() <= min(15, fan_in)
        assert counts.min() >= 1
        # With replacement: distinct ones among 15 draws out of n are n (1 − (1 − 1/n)¹⁵) on average.
        expected = fan_in * (1 - (1 - 1 / fan_in) ** 15)
        assert abs(counts.mean() - expected) < 0.35
        assert not np.any(layer["biases"])


def test_weights_are_standard_normal():
    weights = np.concatenate([np.asarray(layer["weights"]).ravel() for layer in PAPER.init(0)])
    values = weights[weights != 0]
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03


def test_start_is_a_function_of_the_seed():
    one, same, other = sparse_init((30, 20), 5), sparse_init((30, 20), 5), sparse_init((30, 20), 6)
    np.testing.assert_array_equal(one[0]["weights"], same[0]["weights"])
    assert not np.array_equal(one[0]["weights"], other[0]["weights"])


def slow(net, params, picture):
    """The network on one picture as its description reads: every filter at every place, sigmoid, then the pooling."""
    convolution, *dense = (
        {name: np.asarray(value, np.float64) for name, value in layer.items()} for layer in params
    )
    places = net.side - net.window + 1
    maps = np.empty((net.filters, places, places))
    for f in range(net.filters):
        kernel = convolution["weights"][:, f].reshape(net.window, net.window)
        for i in range(places):
            for j in range(places):
                under = picture[i : i + net.window, j : j + net.window]
                maps[f, i, j] = 1 / (1 + np.exp(-(np.sum(under * kernel) + convolution["biases"][f])))
    cells = places // net.pool
    pooled = np.array(
        [
            maps[f, i * net.pool : (i + 1) * net.pool, j * net.pool : (j + 1) * net.pool].max()
            for i in range(cells)
            for j in range(cells)
            for f in range(net.filters)
        ]
    )
    hidden = 1 / (1 + np.exp(-(pooled @ dense[0]["weights"] + dense[0]["biases"])))
    return hidden @ dense[1]["weights"] + dense[1]["biases"]


def test_convolutional_net_is_what_it_says():
    net = ConvNet(
        side=11, filters=3, window=4, pool=3, units=5, outputs=2
    )  # 8 places, 2 cells, 2 places left over
    assert net.cells == 2
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape)), net.init(0))
    pictures = rng.uniform(size=(4, 11, 11))
    expected = [slow(net, params, picture) for picture in pictures]
    np.testing.assert_allclose(net(params, jnp.asarray(pictures.reshape(4, -1))), expected, rtol=1e-12)


def test_convolutional_net_has_the_papers_parameters():
    params = ConvNet(48, 512, 14, 5, 1024, 7).init(0)
    assert parameter_count(params) == 196 * 512 + 512 + 49 * 512 * 1024 + 1024 + 1024 * 7 + 7
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}


def plain(params):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def test_classifier_is_layers_of_tanh_and_logits():
    model = Classifier((5, 4, 3, 2))
    params = model.init(3)
    (a, b, c), inputs = plain(params), np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    hidden = np.tanh(np.tanh(inputs @ a["weights"] + a["biases"]) @ b["weights"] + b["biases"])
    np.testing.assert_allclose(
        model(params, inputs), hidden @ c["weights"] + c["biases"], rtol=1e-5, atol=1e-6
    )


def test_classifier_starts_within_glorots_range_and_by_its_seed():
    first, second = Classifier((400, 300, 62)).init(0)
    for layer, reach in ((first, np.sqrt(6 / 700)), (second, np.sqrt(6 / 362))):
        weights = np.asarray(layer["weights"])
        assert weights.dtype == np.float32
        assert 0.99 * reach < np.abs(weights).max() <= reach
        assert abs(weights.std() - reach / np.sqrt(3)) < 0.02 * reach
        assert not np.any(layer["biases"])
    again, other = Classifier((400, 300, 62)).init(0), Classifier((400, 300, 62)).init(1)
    np.testing.assert_array_equal(again[0]["weights"], first["weights"])
    assert not np.array_equal(other[0]["weights"], first["weights"])


def test_recurrent_net_sees_one_tick_after_another():
    model = Recurrent(2, 20)
    params, sequences = model.init(0), np.random.default_rng(0).random((3, 7, 2)).astype(np.float32)
    own = plain(params)
    for sequence, found in zip(sequences, np.asarray(model(params, sequences)), strict=True):
        state = np.zeros(20)
        for tick in sequence:
            state = np.tanh(state @ own["w"] + tick @ own["v"] + own["b"])
        np.testing.assert_allclose(found, state @ own["u"] + own["c"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(np.count_nonzero(own["w"], axis=0), 15)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
