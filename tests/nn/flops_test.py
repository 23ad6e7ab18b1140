import jax
import jax.numpy as jnp
import pytest

from tinygen.nn.flops import Product, flops, products


def of(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def operations(function, *arguments):
    return flops(products(function, *arguments))


def test_a_product_counts_two_operations_a_multiply_add():
    assert products(jnp.matmul, of(8, 16), of(16, 4)) == {Product(batch=1, rows=8, inner=16, columns=4): 1}
    assert operations(jnp.matmul, of(8, 16), of(16, 4)) == 2 * 8 * 16 * 4
    assert operations(lambda a, b: jnp.einsum("nld,nsd->nls", a, b), of(3, 5, 7), of(3, 6, 7)) == 2 * 3 * 5 * 6 * 7


def test_a_gradient_costs_twice_its_product_again():
    def forward(a, b):
        return jnp.sum(jnp.sin(a @ b))

    both = jax.jit(jax.value_and_grad(forward, argnums=(0, 1)))
    assert operations(both, of(8, 16), of(16, 4)) == 3 * operations(forward, of(8, 16), of(16, 4))


def test_elementwise_work_counts_nothing():
    assert operations(lambda x: jnp.exp(x) + x * 2, of(100, 100)) == 0


def test_a_scan_counts_every_turn_and_a_condition_its_dearest_branch():
    square = 2 * 8**3
    assert operations(lambda a: jax.lax.scan(lambda c, _: (c @ a, None), a, None, length=5)[0], of(8, 8)) == 5 * square
    assert operations(lambda a: jax.lax.cond(a[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, a), of(8, 8)) == 2 * square
    assert operations(lambda a: jax.lax.cond(a[0, 0] > 0, lambda x: x, lambda x: x @ x, a), of(8, 8)) == square


def test_what_is_recomputed_counts():
    def once(a):
        return jnp.sum(jnp.sin(a @ a @ a))

    plain, again = (operations(jax.grad(f), of(8, 8)) for f in (once, jax.checkpoint(once)))
    assert plain < again <= plain + 2 * 2 * 8**3


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_convolution_counts_as_xla_counts_it(groups):
    def convolve(x, kernel):
        letters = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=letters, feature_group_count=groups)

    arguments = of(2, 8, 8, 4), of(3, 3, 4 // groups, 8)
    assert operations(convolve, *arguments) == jax.jit(convolve).lower(*arguments).cost_analysis()["flops"]


def test_padding_rounds_every_size_but_the_batch_up_to_the_tile():
    assert Product(batch=3, rows=9, inner=72, columns=128).flops(tile=8) == 2 * 3 * 16 * 72 * 128
    assert Product(batch=3, rows=9, inner=72, columns=128).flops(tile=128) == 2 * 3 * 128**3
