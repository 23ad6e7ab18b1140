"""The best speed of a single matrix product on this machine, as a reference for training steps."""

import functools
import time
from typing import Any

from benchmarks.machine import caution, head

# (rows, inner, columns) of [rows, inner] x [inner, columns], in order of FLOPs.
SHAPES = (
    (512, 512, 512),
    (2048, 384, 1536),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 1024, 4096),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)
SLICE = 0.1  # seconds of products timed together, so that dispatch is negligible


def measure(seconds: float) -> list[dict[str, Any]]:
    """FLOP/s of each shape and dtype, in about `seconds` per dtype; shapes that would take longer are skipped.

    The arithmetic is that of the models: float32, or bfloat16 operands accumulated in float32.
    """
    import jax
    import jax.numpy as jnp

    from tinygen.nn.matmul import product

    def one(operands: str, rows: int, inner: int, columns: int) -> dict[str, Any]:
        kind = jnp.dtype(operands)
        a, b = jnp.ones((rows, inner), kind), jnp.ones((inner, columns), kind)
        multiply = jax.jit(functools.partial(product, axes=((1,), (0,)), precision=operands))

        def block(times: int) -> float:
            start = time.perf_counter()
            jax.block_until_ready([multiply(a, b) for _ in range(times)][-1])
            return time.perf_counter() - start

        block(1)  # compile
        times = max(1, min(50, int(SLICE / block(1))))
        return {
            "operands": operands,
            "shape": [rows, inner, columns],
            "flops_per_s": [2 * rows * inner * columns * times / block(times) for _ in range(3)],
        }

    found: list[dict[str, Any]] = []
    for operands in ("float32", "bfloat16"):
        end, rate = time.perf_counter() + seconds, float("inf")
        for shape in SHAPES:
            calls = 5 * 2 * shape[0] * shape[1] * shape[2] / rate
            if time.perf_counter() + calls < end:
                found.append(one(operands, *shape))
                rate = max(found[-1]["flops_per_s"])
    return found


def best(found: list[dict[str, Any]]) -> dict[str, float]:
    """{dtype: the best FLOP/s of any shape}"""
    kinds = dict.fromkeys(each["operands"] for each in found)
    return {kind: max(max(each["flops_per_s"]) for each in found if each["operands"] == kind) for kind in kinds}


def table(result: dict[str, Any]) -> str:
    lines = [head(result["machine"]), "operands   rows x inner x columns    GFLOP/s   (best of three)"]
    for each in result["products"]:
        lines.append(f"{each['operands']:<9}  {' x '.join(map(str, each['shape'])):>22} {max(each['flops_per_s']) / 1e9:10.1f}")
    lines += [f"best {kind}: {rate / 1e9:.1f} GFLOP/s" for kind, rate in best(result["products"]).items()]
    return "\n".join([*lines, *caution(result["busy_before"])])
