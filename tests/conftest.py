"""What all tests share: the smallest run, a toy model without images, and how JAX computes."""

from jax_environment import OWN_CACHE  # isort: skip - JAX reads the environment when it is imported

import dataclasses
import gc
import itertools
import json
import math
import os
import shutil
import signal
import tarfile
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import toy_network
from absl import logging as absl_logging
from etils import epath
from flax import nnx

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.cli import commands
from tinygen.cli import main as cli
from tinygen.config import schema as keys
from tinygen.config.key import Key
from tinygen.data.codec import Codec, Field
from tinygen.data.examples import ArrayExamples
from tinygen.data.source import DataSource
from tinygen.distributed.mesh import make_mesh
from tinygen.media import Array, Curve
from tinygen.media.preview import Preview
from tinygen.nn.layers import Linear
from tinygen.nn.names import path_name
from tinygen.objectives.base import Objective
from tinygen.train_step import init_state
from tinygen.workdir import logger

collect_ignore = ["shared"]  # tests import what is there; doctests would import it once more

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it puts in the background; the tests' processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Leaves what is imported by now out of the garbage collector's rounds, and has fewer of them: tracing makes millions of objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture(autouse=True, scope="module")
def forget():
    """JAX keeps everything that was ever traced, and slows down with it; absl keeps the level that the last command set."""
    level = absl_logging.get_verbosity()
    yield
    absl_logging.set_verbosity(level)
    jax.clear_caches()


def pytest_unconfigure():
    if OWN_CACHE:
        shutil.rmtree(OWN_CACHE, ignore_errors=True)


def tiny(**changes):
    """The smallest run with all that a run has: 600 parameters a token, four tokens, named labels; the same numbers on every machine."""
    config = config_lib.base(
        precision="float32",
        data=dict(name="pixel_faces"),
        batch_size=64,
        model=dict(name="microdit", patch=8, width=8, depth=1, heads=2, mlp_multiple=8),
        objective=dict(nfe=4),
        optim=dict(lr=2e-3, warmup=5, decay_steps=40),
        ema=dict(decay=0.9),
        train=dict(steps=20, log_every=5, eval_every=20, preview_every=10, preview_num=8, checkpoint_every=10),
    )
    return config_lib.change(config, changes)


@pytest.fixture(name="tiny", scope="session")
def tiny_fixture():
    return tiny


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """(workdir, config) of a tiny run that went its 20 steps. Shared: only to be read."""
    workdir, config = tmp_path_factory.mktemp("finished") / "run", tiny()
    assert train.main(config, str(workdir)) == 0
    return SimpleNamespace(workdir=workdir, config=config)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory):
    """The workdir of a network that has learnt 8x8 digits for two steps: 16 features. Shared: only to be read."""
    workdir, model = tmp_path_factory.mktemp("classifier") / "toy", dict(name="classifier", width=8, stages=2)
    config = tiny(data=dict(name="digits8"), model=model, objective=dict(name="classification"))
    few = dict(train=dict(steps=2, eval_every=0, preview_every=0))
    assert train.main(config_lib.change(config, few), str(workdir)) == 0
    return workdir


@pytest.fixture(name="toy_network", scope="session")
def toy_network_fixture():
    return toy_network.make


@pytest.fixture
def machine_of(monkeypatch):
    """machine_of(n): from here on this machine has n devices."""
    return lambda n: monkeypatch.setattr(build, "make_mesh", lambda sizes: make_mesh(sizes, jax.devices()[:n]))


@pytest.fixture
def called(monkeypatch):
    """Runs a command line up to the call that it makes, gives that call's (module, arguments, keywords)."""

    def run(*arguments):
        calls = []
        monkeypatch.setattr(commands, "_command", lambda module: lambda *args, **kwargs: calls.append((module, args, kwargs)))
        assert cli.main(list(arguments)) == 0
        return calls[0]

    return run


@pytest.fixture(scope="session")
def stop_during():
    """stop_during(monkeypatch, n): this process gets a SIGTERM during step n of the next run."""

    def arrange(patch, n):
        advance = logger.RunLogger.advance

        def signalling(self, done):
            advance(self, done)
            if done == n - 1:
                os.kill(os.getpid(), signal.SIGTERM)

        patch.setattr(logger.RunLogger, "advance", signalling)

    return arrange


class ToyCurve(nnx.Module):
    """x [B, 1] -> y [B, 1] by a perceptron."""

    def __init__(self, *, shape, target_shape, hidden, precision, rngs):
        sizes = [*shape, hidden, *target_shape]
        self.layers = nnx.List([Linear(a, b, precision=precision, rngs=rngs) for a, b in itertools.pairwise(sizes)])

    def __call__(self, x, *, rngs=None):
        return self.layers[1](jnp.tanh(self.layers[0](x)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToySquaredError(Objective):
    """Mean squared error of y, nothing random in it."""

    points: int

    def loss(self, model, batch, key, *, train):
        error = jnp.mean(jnp.square(model(batch["x"]) - batch["y"]), -1)
        weight = batch.get("weight", jnp.ones(len(error)))
        total = (jnp.sum(weight * error), jnp.sum(weight))
        return total[0] / jnp.maximum(total[1], 1e-12), {"loss": total, "raw_loss": total}

    def preview(self, raw, averaged, batch, keys):
        x = jnp.linspace(-1.0, 1.0, self.points)[:, None]
        return {"curve": Preview(jnp.concatenate([x, averaged(x)], -1), Curve(curves=("model",)))}


def toy_sine(*, num):
    x = np.linspace(-1, 1, num, dtype=np.float32)[np.random.default_rng(0).permutation(num), None]
    examples = {"x": x, "y": np.sin(3 * x)}
    field = Field(shape=(1,), dtype="float32", low=-1.0, high=1.0)
    return DataSource(
        codec=Codec(medium=Array("curve"), spec={"x": field, "y": field}),
        splits={
            "train": ArrayExamples({key: array[: num * 3 // 4] for key, array in examples.items()}),
            "validation": ArrayExamples({key: array[num * 3 // 4 :] for key, array in examples.items()}),
        },
        fingerprint=f"sine {num}",
    )


@pytest.fixture
def add_row(monkeypatch):
    """add_row(section, name, constructor, keywords): a model, objective or data set as a user adds one, for this test alone.

    keywords: {name: default, or a Key}
    """

    def add(section, name, constructor, keywords):
        builders = {"model": build.MODELS, "objective": build.OBJECTIVES, "data": build.datasets()}
        monkeypatch.setitem(builders[section], name, constructor)
        declared = {key: value if isinstance(value, Key) else keys.key(value, "of a toy") for key, value in keywords.items()}
        monkeypatch.setitem(keys.TABLES[section], name, keys.Section("a toy", **declared))

    return add


@pytest.fixture
def curve(add_row):
    """curve(**changes): the configuration of a regression y = sin 3x, which compiles in no time; no denoiser, no images."""
    add_row("model", "toy_curve", ToyCurve, dict(hidden=16))
    add_row("objective", "toy_squared_error", ToySquaredError, dict(points=32))
    add_row("data", "toy_sine", toy_sine, dict(num=64))

    def config(**changes):
        return config_lib.change(
            config_lib.base(
                data=dict(name="toy_sine"),
                model=dict(name="toy_curve"),
                objective=dict(name="toy_squared_error"),
                batch_size=16,
                optim=dict(lr=1e-2, schedule="constant"),
                ema=dict(decay=0.5),
                train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=8, checkpoint_every=10),
            ),
            changes,
        )

    return config


@pytest.fixture
def made(machine_of):
    """made(config, data, fsdp, tensor): the state of `config` on a mesh of so many devices, each leaf filled with numbers of its own."""

    def make(config, *sizes):
        machine_of(math.prod(sizes))
        config = config_lib.change(config, dict(mesh=dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)), sharding=dict(min_size=8)))
        parts = build.parts(config, build.data_source(config).codec)
        abstract = jax.eval_shape(lambda: init_state(parts.create, build.optimizer(config)[0], 0))
        shardings = parts.layout.shardings(abstract)
        numbers = np.random.default_rng(0)
        filled = jax.tree.map(
            lambda leaf, sharding: jax.device_put(numbers.normal(scale=1000, size=leaf.shape).astype(leaf.dtype), sharding),
            abstract,
            shardings,
        )
        return SimpleNamespace(config=config, abstract=abstract, shardings=shardings, state=filled)

    return make


@pytest.fixture(scope="session")
def saved_arrays():
    """saved_arrays(workdir, step): {"params/blocks/0/...": array} of everything that a checkpoint's state holds."""

    def read(workdir, step):
        with ocp.CheckpointManager(epath.Path(workdir) / "checkpoints", options=ocp.CheckpointManagerOptions(create=False)) as manager:
            state = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore()))["state"]
        return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}

    return read


@pytest.fixture(scope="session")
def metrics_of():
    """metrics_of(workdir): the lines of metrics.jsonl without the one number that depends on the machine."""

    def read(workdir):
        lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key not in logger.TIMINGS} for line in lines]

    return read


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """A small run that stopped at step 3. Only to be read."""
    place = tmp_path_factory.mktemp("released")
    with tarfile.open(Path(__file__).parent / "golden" / "0.1.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place / "0.1"
