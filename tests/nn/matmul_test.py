"""Matrix products: their values, and their derivatives in both modes, by formulas and on numbers that bfloat16 holds exactly."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen.distributed.mesh import make_mesh
from tinygen.nn import matmul
from tinygen.nn.attention import attention
from tinygen.nn.feed_forward import SwiGLU
from tinygen.nn.matmul import product


@pytest.fixture
def normal():
    """Draws float32 arrays; every test begins with the same ones."""
    rng = np.random.default_rng(0)
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


@pytest.fixture
def whole():
    """Draws small whole numbers: bfloat16 holds them and float32 their sums, so nothing is rounded."""
    rng = np.random.default_rng(0)
    return lambda *shape: jnp.asarray(rng.integers(-3, 4, shape), jnp.float32)


def rounded(x):
    """x as bfloat16 holds it, in float64."""
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32), np.float64)


@pytest.mark.parametrize(
    ("a", "b", "axes", "batch", "formula"),
    [
        ((5, 200), (200, 7), ((1,), (0,)), ((), ()), "ij,jk->ik"),
        ((2, 3, 5, 64), (2, 3, 4, 64), ((3,), (3,)), ((0, 1), (0, 1)), "abik,abjk->abij"),
    ],
)
def test_a_product_is_exact_to_its_precision_and_gives_float32(normal, a, b, axes, batch, formula):
    a, b = jnp.asarray(normal(*a)), jnp.asarray(normal(*b))
    for precision, hold in (("float32", lambda x: np.asarray(x, np.float64)), ("bfloat16", rounded)):
        got = product(a, b, axes, batch, precision=precision)
        want, size = (np.einsum(formula, *map(f, (hold(a), hold(b)))) for f in (lambda x: x, np.abs))
        assert got.dtype == jnp.float32
        # Sums in float32: the error grows at worst as the number of terms (200) x 2⁻²⁴ of the terms' size; bfloat16 sums would show 2⁻⁸.
        assert np.all(np.abs(got - want) <= 200 * 2**-24 * size)
    assert np.max(np.abs(product(a, b, axes, batch, precision="bfloat16") - product(a, b, axes, batch, precision="float32"))) > 1e-3


def test_a_product_of_unknown_precision_is_a_fault():
    with pytest.raises(ValueError, match="float16"):
        product(jnp.ones((1, 1)), jnp.ones((1, 1)), ((1,), (0,)), precision="float16")


def test_rounded_operands_that_are_not_matrices_are_a_fault():
    with pytest.raises(ValueError, match="not a matrix product"):
        product(jnp.ones((2, 3, 4)), jnp.ones((4, 5)), ((2,), (0,)), precision="bfloat16")


# Derivatives of products of rounded operands

FORMS = [  # (the left operand's letters, the right's, the axes summed over): m and n stay, k goes, z is in common
    ("mk", "kn", ((1,), (0,))),
    ("km", "kn", ((0,), (0,))),
    ("mk", "nk", ((1,), (1,))),
    ("km", "nk", ((0,), (1,))),
    ("zmk", "zkn", ((2,), (1,))),
    ("zkm", "znk", ((1,), (2,))),
]
SIZES = dict(z=2, m=3, k=5, n=4)


def form(left, right, axes):
    """(the product of bfloat16 operands, its formula, the operands' shapes, the result's letters)."""
    out = "zmn" if "z" in left else "mn"
    batch = ((0,), (0,)) if "z" in left else ((), ())
    shapes = [tuple(SIZES[letter] for letter in letters) for letters in (left, right)]
    formula = functools.partial(jnp.einsum, f"{left},{right}->{out}", precision="highest")
    return functools.partial(product, axes=axes, batch=batch, precision="bfloat16"), formula, shapes, out


@pytest.mark.parametrize(("left", "right", "axes"), FORMS)
def test_the_gradient_is_the_formulas_in_every_form(whole, left, right, axes):
    function, formula, shapes, out = form(left, right, axes)
    a, b = (whole(*shape) for shape in shapes)
    grads = jax.grad(lambda a, b: jnp.sum(function(a, b) ** 3), (0, 1))(a, b)
    g = rounded(3 * formula(a, b) ** 2)  # the cotangent is an operand too
    np.testing.assert_array_equal(grads[0], np.einsum(f"{out},{right}->{left}", g, b))
    np.testing.assert_array_equal(grads[1], np.einsum(f"{out},{left}->{right}", g, a))


@pytest.mark.parametrize(("left", "right", "axes"), FORMS)
def test_forward_mode_gives_the_difference_quotient(whole, left, right, axes):
    """Of a bilinear function the central one is exact."""
    function, formula, shapes, _ = form(left, right, axes)
    a, b, da, db = (whole(*shape) for shape in shapes * 2)
    value, tangent = jax.jvp(function, (a, b), (da, db))
    np.testing.assert_array_equal(value, formula(a, b))
    np.testing.assert_array_equal(tangent, (formula(a + da, b + db) - formula(a - da, b - db)) / 2)


@pytest.mark.parametrize(("left", "right", "axes"), FORMS)
def test_modes_of_differentiation_nest_in_any_order(whole, left, right, axes):
    """Reverse over forward as MeanFlow takes it, forward over reverse, reverse over reverse: one Hessian times one direction."""
    function, formula, shapes, _ = form(left, right, axes)
    a, b, da, db = (jnp.sign(whole(*shape)) for shape in shapes * 2)  # so small that bfloat16 holds the cotangents too

    def squared(function):
        return lambda a, b: jnp.sum(function(a, b) ** 2)

    def along(function):
        gradient = jax.grad(squared(function), (0, 1))
        return lambda a, b: sum(jnp.sum(g * d) for g, d in zip(gradient(a, b), (da, db), strict=True))

    want = jax.grad(along(formula), (0, 1))(a, b)
    reverse_over_forward = jax.grad(lambda a, b: jax.jvp(squared(function), (a, b), (da, db))[1], (0, 1))(a, b)
    forward_over_reverse = jax.jvp(jax.grad(squared(function), (0, 1)), (a, b), (da, db))[1]
    reverse_over_reverse = jax.grad(along(function), (0, 1))(a, b)
    for got in (reverse_over_forward, forward_over_reverse, reverse_over_reverse):
        jax.tree.map(np.testing.assert_array_equal, got, want)


def test_a_mapped_product_is_that_of_each_example(whole):
    a, b = whole(6, 3, 5), whole(5, 4)
    function = functools.partial(product, axes=((1,), (0,)), precision="bfloat16")
    want = jnp.stack([function(each, b) for each in a])
    np.testing.assert_array_equal(jax.vmap(function, (0, None))(a, b), want)
    np.testing.assert_array_equal(jax.vmap(function, (1, None))(jnp.moveaxis(a, 0, 1), b), want)


def test_cotangents_have_the_operands_own_types():
    a, b = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4), jnp.float32)
    grads = jax.grad(lambda a, b: jnp.sum(product(a, b, ((1,), (0,)), precision="bfloat16")), (0, 1))(a, b)
    assert [str(each.dtype) for each in grads] == ["bfloat16", "float32"]


def a_layers_loss(precision):
    return lambda x, kernel: jnp.sum(jnp.tanh(product(x, kernel, ((1,), (0,)), precision=precision)))


@pytest.mark.parametrize(("precision", "otherwise"), [("float32", True), ("bfloat16", False)])
def test_on_a_cpu_every_rounded_product_sums_over_its_left_operands_last_axis(normal, precision, otherwise):
    """In the compiled program, backward too. Exact ones are left as JAX makes them: there the kernel's gradient does otherwise."""
    gradient = jax.jit(jax.grad(a_layers_loss(precision), (0, 1)))
    text = gradient.lower(normal(64, 32), normal(32, 48)).compile().as_text()
    found = [line for line in text.splitlines() if re.search(r" dot\(", line)]
    assert len(found) == 3
    assert any("lhs_contracting_dims={0}" in line for line in found) == otherwise


def operand_types(function, *arrays):
    """Of each product in the compiled program: the element types of what it multiplies."""
    text = jax.jit(function).lower(*arrays).compile().as_text()
    found = []
    for computation in text.split("\n\n"):
        types = dict(re.findall(r"%?([\w.\-]+) = (\w+)\[", computation))
        for operands in re.findall(r" dot\(([^)]*)\)", computation):
            found.append({types[name] for name in re.findall(r"%([\w.\-]+)", operands)})
    return found


def test_on_a_cpu_attentions_products_multiply_what_a_layers_do(normal):
    """Heads stand between a token's; without a pinned layout XLA widens such products' operands to float32 again."""
    q, k, v = (normal(2, 64, 4, 32) for _ in range(3))
    layers = operand_types(jax.grad(a_layers_loss("bfloat16"), (0, 1)), normal(64, 32), normal(32, 48))

    def mixed(q, k, v):
        return jnp.sum(jnp.tanh(attention(q, k, v, precision="bfloat16", method="plain")))

    found = operand_types(jax.grad(mixed, (0, 1, 2)), q, k, v)
    assert len(found) == 6
    assert all(types == layers[0] for types in [*found, *layers])


def test_a_product_that_a_loop_turns_round_runs(normal):
    """There XLA may choose how its result lies: with operands pinned and the result not, this program stopped when it ran."""
    a, b = normal(3, 2, 64, 32), normal(3, 2, 32, 48)

    def turned(given):
        return jnp.swapaxes(product(*given, ((2,), (1,)), ((0,), (0,)), precision="bfloat16"), 1, 2)

    looped = jax.jit(lambda a, b: jnp.swapaxes(jax.lax.map(turned, (a, b)), 2, 3))(a, b)
    np.testing.assert_allclose(looped, a @ b, rtol=0.02, atol=0.2)


def test_a_sharded_rounded_product_is_the_whole_one(normal):
    """Pinned layouts and all: rows over data and fsdp, columns over tensor."""
    x, kernel = jnp.asarray(normal(16, 32)), jnp.asarray(normal(32, 8))
    gradient = jax.jit(jax.grad(a_layers_loss("bfloat16"), (0, 1)))
    want, mesh = gradient(x, kernel), make_mesh(dict(data=2, fsdp=2, tensor=2))

    def put(value, *spec):
        return jax.device_put(value, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))

    with jax.set_mesh(mesh):
        got = gradient(put(x, ("data", "fsdp")), put(kernel, "fsdp", "tensor"))
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=0.02)  # a sum in another order may round a cotangent of size one the other way


# Activations


def test_only_bfloat16_activations_are_narrowed():
    x = jnp.ones(2)
    narrowed = {name: str(matmul.narrow(x, precision=name).dtype) for name in matmul.PRECISIONS}
    assert narrowed == {"float32": "float32", "bfloat16": "float32", "bfloat16_activations": "bfloat16"}


def test_narrow_activations_halve_what_a_feed_forward_keeps_and_differ_by_their_rounding(normal):
    x = jnp.asarray(normal(2, 4, 16))
    outputs, kept = {}, {}
    for precision in matmul.PRECISIONS:
        graphdef, state = nnx.split(SwiGLU(16, 64, precision=precision, rngs=nnx.Rngs(0)))
        outputs[precision], pullback = jax.vjp(lambda state, x, graphdef=graphdef: nnx.merge(graphdef, state)(x), state, x)
        kept[precision] = sum(leaf.nbytes for leaf in jax.tree.leaves(pullback) if leaf.size == 2 * 4 * 64)
    assert kept["bfloat16_activations"] <= kept["bfloat16"] / 2
    assert outputs["bfloat16_activations"].dtype == jnp.float32
    np.testing.assert_allclose(
        outputs["bfloat16_activations"], outputs["float32"], atol=0.05
    )  # some roundings of 2⁻⁹, of values of size one
    assert np.any(outputs["bfloat16_activations"] != outputs["bfloat16"])


@pytest.mark.parametrize(
    ("backend", "flags", "best"),
    [
        ("cpu", {"avx2"}, "float32"),
        ("cpu", {"avx2", "avx512f", "avx512_bf16"}, "bfloat16"),
        ("cpu", {"amx_bf16"}, "bfloat16"),
        ("gpu", set(), "bfloat16_activations"),
        ("tpu", set(), "bfloat16_activations"),
    ],
)
def test_the_best_precision_is_what_the_machine_computes_fast(monkeypatch, backend, flags, best):
    monkeypatch.setattr(matmul, "cpu_flags", lambda: flags)
    assert matmul.best_precision(backend) == best
