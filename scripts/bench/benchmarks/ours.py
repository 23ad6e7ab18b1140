"""tinygen's contestants: the compiled training step and sampler of a DiT on fixed noise of any shape.

Only needs JAX, Flax, Optax, NumPy, absl and ml_collections, not all of the dependencies of training.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from ml_collections import config_flags

from tinygen import config as config_lib
from tinygen.config import Config
from tinygen.data.codec import Batch, Codec, Field
from tinygen.data.labels import Labels
from tinygen.errors import UserError, unknown
from tinygen.media import Image

CLASSES = 1000
OPTIONS = ("width", "depth", "heads", "patch")  # keys of the model that are flags


class Work(NamedTuple):
    """Compiled work to be timed.

    run: runs it once and waits for the device
    stages: seconds to trace, lower and compile it
    flops: FLOPs per run
    """

    run: Callable[[], Any]
    stages: dict[str, float]
    flops: int
    parameters: int


def prepare_process() -> bool:
    """Sets up the process as the command line does. Returns whether the packages for that are installed."""
    try:
        from tinygen.system import malloc, runtime
    except ModuleNotFoundError:  # etils may be missing on a machine that is only used for benchmarks
        return False
    malloc.retain_freed_memory()
    runtime.disable_async_dispatch()
    return True


def grid(options: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """All combinations of the options' values; if `heads` is 0 or missing, heads have 64 features."""
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        yield {**chosen, "heads": chosen.get("heads") or max(1, chosen["width"] // 64)}


def configuration(chosen: Mapping[str, int], settings: Sequence[str]) -> Config:
    """The default configuration with a DiT of these sizes and "key=value" `settings`, as in `--config.key=value`."""
    model = {key: chosen[key] for key in OPTIONS}
    config = config_lib.base(batch_size=chosen["batch_size"], model=dict(name="microdit", **model), objective=dict(name="flow"))
    return override(config, settings)


def override(config: Config, settings: Sequence[str]) -> Config:
    """`config` with the given "key=value" overrides. Raises UserError for unknown keys and invalid values."""
    for setting in settings:  # one by one, since a new name changes which keys there are
        key, override, keys = setting.partition("=")[0], f"--config.{setting}", config_lib.flatten(config)
        if key not in keys:
            raise unknown("config key", key, keys)
        typed = flags.FlagValues()
        config_flags.DEFINE_config_dict("config", config_lib.change(config, {}), flag_values=typed, sys_argv=[override])
        try:
            typed(["bench", override])
        except (flags.Error, ValueError) as error:
            raise UserError(f"{setting}: {' '.join(str(error).split())}") from error
        change: Any = config_lib.flatten(typed.config)[key]
        for name in reversed(key.split(".")):
            change = {name: change}
        config = config_lib.change(config, change)
    config_lib.check(config)
    return config


def noise_codec(shape: Sequence[int], classes: int = CLASSES) -> Codec:
    """A codec of images of this shape with `classes` labels."""
    x = Field(shape=tuple(shape), dtype="float32", low=-1, high=1)
    label = Field(shape=(), dtype="int32", low=0, high=classes - 1)
    return Codec(medium=Image(), spec={"x": x, "label": label}, conditions=(Labels(tuple(map(str, range(classes)))),))


class Step(NamedTuple):
    """A training step before compilation: the jitted function, and its arguments as shapes with shardings.

    create: initialises the state
    """

    parts: Any
    jitted: Any
    create: Callable[[], Any]
    abstract: Any
    batch: Any


def step_of(config: Config, codec: Codec) -> Step:
    """The training step of a configuration for batches as the codec describes them, built as in the training loop."""
    from tinygen import build
    from tinygen.profiling import footprint
    from tinygen.training.program import make_program

    if config.train.steps_per_call != 1:
        raise UserError("train.steps_per_call must be 1 here; `bench.py calls` times several steps per call")
    parts = build.parts(config, codec)
    program = make_program(config, parts)
    return Step(parts, program.step, program.initialise, footprint.placed(program.abstract, parts.layout), program.argument)


def training_step(config: Config, codec: Codec) -> Work:
    """A training step on a fixed batch of noise: forward and backward pass, optimizer, averaged weights."""
    import jax

    step = step_of(config, codec)
    with jax.set_mesh(step.parts.layout.mesh):
        take_step, stages = compiled(step.jitted, step.abstract, step.batch)
        operations = _operations(step.jitted, step.abstract, step.batch)
        state = step.create()
    batch = step.parts.layout.share(noise(codec, config.batch_size))

    def run() -> None:
        nonlocal state
        state = jax.block_until_ready(take_step(state, batch)[0])

    return Work(run, stages, operations, _elements(step.abstract.params))


def noise(codec: Codec, batch_size: int) -> Batch:
    """A batch as the codec describes it, each array uniform over its range."""
    numbers = np.random.default_rng(0)

    def draw(field: Field) -> np.ndarray:
        shape, low, high = (batch_size, *field.shape), field.low or 0, field.high or 0
        if np.issubdtype(np.dtype(field.dtype), np.integer):
            return numbers.integers(int(low), int(high) + 1, shape).astype(field.dtype)
        return numbers.uniform(low, high, shape).astype(field.dtype)

    return {key: draw(field) for key, field in codec.spec.items()}


def sampler(config: Config, codec: Codec) -> Work:
    """A batch of samples from freshly initialised weights, cycling through the labels."""
    import jax
    from flax import nnx

    from tinygen import build
    from tinygen.profiling import footprint
    from tinygen.rng import example_keys, stream
    from tinygen.train_step import merge, split

    parts = build.parts(config, codec)
    graphdef, root = parts.graphdef, stream(config.seed, "sample")

    def sample(params: Any, buffers: Any, cond: Mapping[str, jax.Array]) -> jax.Array:
        keys = parts.layout.pinned(example_keys(root, 0, config.batch_size))
        return parts.objective.draw(merge(graphdef, params, buffers), keys, cond)[0]

    def init() -> tuple[Any, Any]:
        return split(parts.create(nnx.Rngs(stream(config.seed, "init"))))[1:]

    abstract = footprint.placed(jax.eval_shape(init), parts.layout)
    cond = parts.layout.share(codec.encode(config.batch_size))
    jitted = jax.jit(sample, out_shardings=parts.layout.replicated)
    with jax.set_mesh(parts.layout.mesh):
        draw, stages = compiled(jitted, *abstract, cond)
        operations = _operations(jitted, *abstract, cond)
        weights = jax.jit(init, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, abstract))()
    return Work(lambda: jax.block_until_ready(draw(*weights, cond)), stages, operations, _elements(abstract[0]))


def compiled(jitted: Any, *arguments: Any) -> tuple[Any, dict[str, float]]:
    """(the compiled function, seconds of each stage: trace, lower, compile)"""
    start = time.perf_counter()
    traced = jitted.trace(*arguments)
    tracing = time.perf_counter()
    lowered = traced.lower()
    lowering = time.perf_counter()
    program = lowered.compile()
    end = time.perf_counter()
    return program, {"trace": tracing - start, "lower": lowering - tracing, "compile": end - lowering}


def _operations(jitted: Any, *arguments: Any) -> int:
    from tinygen.nn.flops import flops, products

    return flops(products(jitted, *arguments))


def _elements(tree: Any) -> int:
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(tree))
