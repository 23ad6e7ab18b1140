"""A training step on several meshes and batch sizes: what each device computes, holds and sends; time per step."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks import gpt_step, ours
from tinygen import config as config_lib
from tinygen.data.codec import Codec
from tinygen.profiling import footprint
from tinygen.training.preflight import check_batch_size


def measure(
    recipe: str, settings: Sequence[str], vocabulary: int, meshes: Sequence[tuple[int, int]], batch_sizes: Sequence[int], steps: int
) -> str:
    """A table.

    meshes: (data, tensor)
    steps: timed steps of each mesh, one mesh after another, since several do not fit in memory
    """
    config = gpt_step.load_recipe(recipe, settings)
    codec = gpt_step.codec_of(vocabulary, config.data.length)
    lines = [
        f"windows of {config.data.length} tokens, vocabulary {vocabulary:,}; {jax.device_count()} x {jax.devices()[0].device_kind}",
        "batch  mesh  MFLOPs/device  state MiB  temporary MiB  sent MiB/step" + " ms per step   tokens/s" * (steps > 0),
    ]
    for size in batch_sizes:
        for data, tensor in meshes:
            own = config_lib.change(config, dict(batch_size=size, mesh=dict(data=data, fsdp=1, tensor=tensor)))
            step = ours.step_of(own, codec)
            check_batch_size(own, step.parts.layout)
            compiled = step.jitted.trace(step.abstract, step.batch).lower().compile()
            used = footprint.measure(compiled, step.parts.layout, step.abstract)
            state, temporary = sum(used.held.values()) / 2**20, used.step.get("temporary", 0) / 2**20
            sent = sum(traffic.bytes for traffic in used.program.collectives.values()) / 2**20
            line = f"{size:5d}  {data}x{tensor:<3} {used.program.flops / 1e6:13,.0f} {state:10,.1f} {temporary:14,.0f} {sent:14,.1f}"
            if steps:
                median = statistics.median(seconds(step, compiled, codec, size, steps))
                line += f" {1000 * median:11,.1f} {size * config.data.length / median:10,.0f}"
            lines.append(line)
    return "\n".join(lines)


def seconds(step: ours.Step, compiled: Any, codec: Codec, size: int, steps: int) -> list[float]:
    """Seconds of each step after a first one to warm up."""
    with jax.set_mesh(step.parts.layout.mesh):
        state = step.create()
    batch = step.parts.layout.share(ours.noise(codec, size))
    times = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        state = jax.block_until_ready(compiled(state, batch)[0])
        times.append(time.perf_counter() - start)
    return times[1:]
