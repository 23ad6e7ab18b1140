"""tinygen's side: a DiT on fixed noise of any shape, and its training step and sampler, compiled.

It takes JAX, Flax, Optax, NumPy, absl and ml_collections, and nothing else of what training needs.
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
OPTIONS = ("width", "depth", "heads", "patch")  # of the model, on the command line


class Work(NamedTuple):
    """A function of tinygen that can be timed.

    run: does it once and waits for the device
    stages: seconds of its compilation: trace, lower, compile
    flops: of one run
    """

    run: Callable[[], Any]
    stages: dict[str, float]
    flops: int
    parameters: int


def prepare_process() -> bool:
    """Prepares the process as the command line does; returns whether freed memory is kept."""
    try:
        from tinygen.system import malloc, runtime
    except ModuleNotFoundError:  # it needs etils, which a machine that is lent for measuring may not have
        return False
    malloc.retain_freed_memory()
    runtime.disable_async_dispatch()
    return True


def grid(options: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Every combination of the options' values; without `heads`, heads of 64 features."""
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        yield {**chosen, "heads": chosen.get("heads") or max(1, chosen["width"] // 64)}


def configuration(chosen: Mapping[str, int], settings: Sequence[str]) -> Config:
    """The default configuration with a DiT of these sizes, then `settings`: "key=value" each, as `--config.key=value` reads them."""
    model = {key: chosen[key] for key in OPTIONS}
    config = config_lib.base(batch_size=chosen["batch_size"], model=dict(name="microdit", **model), objective=dict(name="flow"))
    return changed(config, settings)


def changed(config: Config, settings: Sequence[str]) -> Config:
    """`config` with every "key=value". Raises UserError for an unknown key and for an invalid value."""
    for setting in settings:  # one after the other: a new name brings another row of keywords
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
    """A codec of images with this shape and number of labels."""
    x = Field(shape=tuple(shape), dtype="float32", low=-1, high=1)
    label = Field(shape=(), dtype="int32", low=0, high=classes - 1)
    return Codec(medium=Image(), spec={"x": x, "label": label}, conditions=(Labels(tuple(map(str, range(classes)))),))


class Step(NamedTuple):
    """A training step before compilation: the jitted function and its arguments, as shapes with shardings.

    create: makes the state
    """

    parts: Any
    jitted: Any
    create: Callable[[], Any]
    abstract: Any
    batch: Any


def step_of(config: Config, codec: Codec) -> Step:
    """The training step of a configuration for data of this codec, as the loop makes it."""
    from tinygen import build
    from tinygen.profiling import footprint
    from tinygen.training.program import make_program

    if config.train.steps_per_call != 1:
        raise UserError("train.steps_per_call: only single steps are timed here; `bench.py calls` times several per call")
    parts = build.parts(config, codec)
    made = make_program(config, parts)
    return Step(parts, made.step, made.initialise, footprint.placed(made.abstract, parts.layout), made.argument)


def training_step(config: Config, codec: Codec) -> Work:
    """One step of training on one batch of noise: forward, backward, optimizer, average."""
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
    """A random batch for the codec, each array uniform over its range."""
    numbers = np.random.default_rng(0)

    def drawn(field: Field) -> np.ndarray:
        shape, low, high = (batch_size, *field.shape), field.low or 0, field.high or 0
        if np.issubdtype(np.dtype(field.dtype), np.integer):
            return numbers.integers(int(low), int(high) + 1, shape).astype(field.dtype)
        return numbers.uniform(low, high, shape).astype(field.dtype)

    return {key: drawn(field) for key, field in codec.spec.items()}


def sampler(config: Config, codec: Codec) -> Work:
    """Sampling a batch, with each label in turn, from a model with its initial weights."""
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
