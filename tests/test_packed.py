"""Small arrays packed into one vector: the same numbers, a smaller program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, targets_for

import natgrad as ng
from natgrad import packed as packing
from natgrad.packed import Layout, on_leaves, on_one_device, packed, unpacked

TREE = {
    "first": jnp.full((1, 1), 5.0),
    "w": jnp.arange(6.0).reshape(2, 3),
    "half": jnp.ones(4, jnp.bfloat16),
    "large": jnp.zeros(packing.SMALL + 1),
    "number": jnp.array(7.0),
    "none": None,
    "more": [jnp.ones(2, jnp.bfloat16), jnp.zeros((0, 3))],
}


def equal(x, y):
    assert jax.tree.structure(x) == jax.tree.structure(y)
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64))


def test_a_packed_tree_unpacks_to_itself():
    found = packed(TREE)
    equal(unpacked(found), TREE)
    # The large array as it is, and one vector per dtype.
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(found)] == [
        ((packing.SMALL + 1,), jnp.float64),
        ((8,), jnp.float64),
        ((6,), jnp.bfloat16),
    ]
    equal(unpacked(jax.tree.map(lambda leaf: 2 * leaf, found)), jax.tree.map(lambda leaf: 2 * leaf, TREE))
    equal(unpacked(TREE), TREE)


def test_arrays_that_share_their_kernels_are_not_packed():
    layers = [jnp.full((2, 2), float(number)) for number in range(packing.ALIKE)]
    found = packed({"layers": layers, "first": jnp.ones(3), "last": jnp.ones(1)})
    assert [leaf.shape for leaf in found.arrays] == [(2, 2)] * packing.ALIKE + [(4,)]
    equal(unpacked(found)["layers"], layers)
    fewer = packed({"layers": layers[1:], "last": jnp.ones(1)})
    assert [leaf.shape for leaf in fewer.arrays] == [(4 * (packing.ALIKE - 1) + 1,)]


def test_a_function_of_the_leaves_is_packed_again():
    def double(tree):
        return jax.tree.map(lambda leaf: 2 * leaf, tree)

    assert jax.tree.structure(on_leaves(double, packed(TREE))) == jax.tree.structure(packed(TREE))
    equal(unpacked(on_leaves(double, packed(TREE))), double(TREE))
    equal(on_leaves(double, TREE), double(TREE))


def test_further_axes_in_front_are_kept():
    layout = Layout.of(TREE)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 3 * leaf]), TREE)
    found = layout.pack(stacked)
    assert [leaf.shape for leaf in jax.tree.leaves(found)] == [(2, packing.SMALL + 1), (2, 8), (2, 6)]
    equal(unpacked(found), stacked)


def test_what_cannot_be_packed_stays_as_it_is():
    assert packed(TREE["w"]) is TREE["w"]
    assert [leaf.shape for leaf in jax.tree.leaves(packed([TREE["w"], TREE["number"]]))] == [(7,)]
    assert on_one_device(TREE["w"])
    assert jax.jit(lambda x: jnp.array(on_one_device(x)))(TREE["w"]) == (jax.device_count() == 1)


def test_what_lies_on_several_devices_is_not_packed():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    with jax.set_mesh(mesh):
        tree = {"a": jax.device_put(jnp.ones((4, 2)), spread), "b": jnp.ones(3), "c": jnp.ones(2)}
        layout = jax.jit(lambda tree: packed(tree))(tree).layout
    assert layout.groups == ((0,), (1, 2))


RECIPES = {
    "ngd": ng.natural_gradient,
    "ncg-l": ng.natural_conjugate_gradient,
    "kncg": ng.kncg,
    "hf": lambda *a: ng.hessian_free(*a, solver=ng.TruncatedCG(6)),
    "ksd": lambda *a: ng.krylov_subspace_descent(*a, size=3),
    "tonga": ng.tonga,
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_are_the_same_packed_and_not(recipe, monkeypatch):
    case = MODELS["mlp"]
    batch = case.inputs, targets_for(ng.Bernoulli(), case.model(case.params, case.inputs), 1)

    def run():
        jax.clear_caches()
        opt = RECIPES[recipe](case.model, ng.Bernoulli())
        params, state = case.params, opt.init(case.params)
        for _ in range(3):
            params, state, info = opt.step(params, state, batch)
        assert jax.tree.structure(state) == jax.tree.structure(opt.init(case.params))
        return ravel_pytree(params)[0], info.rho

    together, rho = run()
    monkeypatch.setattr(packing, "SMALL", -1)
    apart, rho_apart = run()
    np.testing.assert_allclose(together, apart, rtol=1e-9)
    np.testing.assert_allclose(rho, rho_apart, rtol=1e-6)


def test_the_algebra_of_a_step_does_not_grow_with_the_layers(monkeypatch):
    """With few arrays in the model's own program, what is left of a step is a number of operations."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def operations(layers):
        def model(params, inputs):
            return inputs @ sum(params)

        params = [jnp.ones((3, 2)) for _ in range(layers)]
        opt = ng.natural_gradient(model, ng.Gaussian())
        batch = jnp.ones((5, 3)), jnp.ones((5, 2))
        jaxpr = jax.make_jaxpr(opt.step)(params, opt.init(params), batch)
        return str(jaxpr).count("\n")

    few, many = operations(2), operations(42)
    # Per layer: one reshape in and out of the vector, and its part of the sum, in each pass through the model.
    assert many - few < 40 * 45
    assert Layout.of([jnp.ones(3)] * 42).groups == (tuple(range(42)),)
