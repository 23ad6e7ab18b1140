from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tinygen.distributed.mesh import make_mesh
from tinygen.nn import flops
from tinygen.profiling import hlo


def of(*shape, place=None):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)


def program(function, *arguments, **places):
    return hlo.read(jax.jit(function, **places).lower(*arguments).compile().as_text())


@pytest.fixture(scope="module")
def place():
    """place("data", None): split over eight devices so."""
    mesh = make_mesh(dict(data=2, fsdp=1, tensor=4))
    return lambda *axes: NamedSharding(mesh, P(*axes))


def turning(a):
    return jax.lax.scan(lambda carry, _: (jnp.sin(carry @ a), None), a, None, length=5)[0]


def choosing(a):
    return jax.lax.cond(a[0, 0] > 0, lambda x: jnp.sin(x @ x) @ x, lambda x: jnp.sin(x @ x), a)


CONVOLVE = partial(jax.lax.conv_general_dilated, window_strides=(1, 1), padding="VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (jnp.matmul, (of(8, 16), of(16, 4))),
        (lambda a, b: jnp.einsum("nld,nsd->nls", a, b), (of(3, 5, 7), of(3, 6, 7))),
        (jax.grad(lambda a, b: jnp.sum(jnp.sin(a @ b)), argnums=(0, 1)), (of(8, 16), of(16, 4))),
        (turning, (of(8, 8),)),
        (choosing, (of(8, 8),)),
        (CONVOLVE, (of(2, 8, 8, 4), of(3, 3, 4, 8))),
        (partial(CONVOLVE, feature_group_count=2), (of(2, 8, 8, 4), of(3, 3, 2, 8))),
        (lambda a: jnp.exp(a) * 2, (of(8, 8),)),
    ],
    ids=["product", "batched", "gradient", "loop", "condition", "convolution", "groups", "element-wise"],
)
def test_one_device_does_the_operations_that_the_function_has(function, arguments):
    assert program(function, *arguments) == hlo.Program(flops.flops(flops.products(function, *arguments)), {})


def test_a_split_product_is_a_share_of_the_work_and_one_all_reduce_of_the_result(place):
    both = program(jnp.matmul, of(32, 64, place=place("data", "tensor")), of(64, 16, place=place("tensor")), out_shardings=place("data"))
    assert both == hlo.Program(2 * 32 * 64 * 16 // 8, {"all-reduce": hlo.Traffic(1, 16 * 16 * 4)})


def test_what_moves_is_told_by_kind_with_its_bytes(place):
    gathered = program(lambda a: a * 2, of(32, 64, place=place("tensor")), out_shardings=place())
    assert gathered.collectives == {"all-gather": hlo.Traffic(1, 32 * 64 * 4)}
    turned = program(lambda a: a * 2, of(32, 64, place=place("tensor")), out_shardings=place(None, "tensor"))
    assert turned.collectives == {"all-to-all": hlo.Traffic(1, 32 * 64 * 4 // 4)}


def test_a_collective_in_a_loop_counts_every_turn(place):
    def summing(a, b):
        return jax.lax.scan(lambda carry, _: (jnp.sin(carry @ b), None), a, None, length=5)[0]

    both = program(summing, of(32, 32, place=place(None, "tensor")), of(32, 32, place=place("tensor")), out_shardings=place())
    assert both.flops == 5 * 2 * 32**3 // 4
    assert sum(traffic.count for traffic in both.collectives.values()) >= 5


def test_a_graphics_cards_program_is_read_too():
    """Products that cuBLAS takes over, collectives that begin and end."""
    text = """HloModule jit_step

ENTRY %main.5 (a.1: bf16[128,64], b.1: bf16[64,32]) -> f32[512,32] {
  %a.1 = bf16[128,64]{1,0} parameter(0)
  %b.1 = bf16[64,32]{1,0} parameter(1)
  %gemm = (f32[128,32]{1,0}, s8[4194304]{0}) custom-call(%a.1, %b.1), custom_call_target="__cublas$gemm", \
backend_config={"gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[]}}}
  %part = f32[128,32]{1,0} get-tuple-element(%gemm), index=0
  %all-gather-start = (f32[128,32]{1,0}, f32[512,32]{1,0}) all-gather-start(%part), channel_id=1, \
replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %all-gather-done = f32[512,32]{1,0} all-gather-done(%all-gather-start)
}
"""
    assert hlo.read(text) == hlo.Program(2 * 128 * 64 * 32, {"all-gather": hlo.Traffic(1, 512 * 32 * 4)})
