"""A model of the user's own that its objective cannot call, or whose answer it cannot take, is refused in two lines."""

import math
import re
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import nnx

from tinygen.cli import main as cli
from tinygen.nn.layers import Linear, Output

CONFIGS = Path(__file__).parents[2] / "configs"


class Flat(nnx.Module):
    def __init__(self, *, shape, precision, rngs):
        self.layer = Linear(math.prod(shape), math.prod(shape), precision=precision, rngs=rngs)

    def predict(self, x):
        return self.layer(x.reshape(len(x), -1)).reshape(x.shape)


class Sound(Flat):
    def __call__(self, x, t, r=None, *, cond, rngs=None):
        return Output(self.predict(x))


class WithoutR(Flat):
    def __call__(self, x, t, *, cond, rngs=None):
        return Output(self.predict(x))


class WithoutCond(Flat):
    def __call__(self, x, t, r=None):
        return Output(self.predict(x))


class Bare(Flat):
    def __call__(self, x, t, r=None, *, cond, rngs=None):
        return self.predict(x)


class Pair(Flat):
    def __call__(self, x, t, r=None, *, cond, rngs=None):
        return self.predict(x), jnp.zeros(())


class Forgetful(Flat):
    def __call__(self, x, t, r=None, *, cond, rngs=None):
        self.predict(x)


class Flattened(Flat):
    def __call__(self, x, t, r=None, *, cond, rngs=None):
        return Output(self.predict(x).reshape(len(x), -1))


CALL = r"A denoiser's __call__ takes \(x, t, \*, cond, rngs=None\), for MeanFlow \(x, t, r, \*, cond, rngs=None\)"
RETURN = r"A denoiser returns tinygen.nn.layers.Output\(pred\), not "
WRONG = [
    ("meanflow_digits", WithoutR, CALL),
    ("dit_digits8", WithoutCond, f"unexpected keyword argument 'cond'. {CALL}"),
    ("dit_digits8", Bare, f"{RETURN}a bare array"),
    ("meanflow_digits", Bare, f"{RETURN}a bare array"),
    ("dit_digits8", Pair, f"{RETURN}'tuple'"),
    ("dit_digits8", Forgetful, f"{RETURN}'NoneType'"),
    ("dit_digits8", Flattened, "Incompatible shapes"),
]


@pytest.fixture
def command(add_row, tmp_path, capsys):
    """command(words, recipe, model): (exit status, stderr) with a model of the user's own."""

    def run(words, recipe, model):
        add_row("model", "mine", model, {})
        path = f"--config={CONFIGS / recipe}.py:smoke"
        status = cli.main([*words, path, "--config.model.name=mine", f"--workdir={tmp_path / 'run'}", "--config.train.steps=1"])
        return status, capsys.readouterr().err

    return run


def refusal(text):
    """The lines of a command's refusal, without what it says of keys that another row drops."""
    return [line for line in text.splitlines() if "drops values of the recipe" not in line]


@pytest.mark.parametrize("words", [["train"], ["train", "--describe"], ["check"]], ids=" ".join)
@pytest.mark.parametrize(("recipe", "model", "said"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_a_denoiser_that_its_objective_cannot_use_is_refused_in_two_lines_whatever_the_command(command, words, recipe, model, said):
    status, told = command(words, recipe, model)
    assert status == 2
    first, second = refusal(told)
    assert "config.model.name=mine and config.objective.name=" in first
    assert re.search(said, second)


@pytest.mark.parametrize(("recipe", "model"), [("dit_digits8", Sound), ("meanflow_digits", Sound), ("dit_digits8", WithoutR)])
def test_a_denoiser_that_is_what_it_has_to_be_is_described(command, recipe, model):
    assert command(["train", "--describe"], recipe, model)[0] == 0


@pytest.mark.parametrize("words", [["train"], ["train", "--describe"], ["check"]], ids=" ".join)
def test_a_model_that_is_no_denoiser_under_an_objective_that_wants_one_is_refused_in_two_lines(tmp_path, capsys, words):
    recipe = f"--config={CONFIGS / 'fsdp_sine.py'}:smoke"
    assert cli.main([*words, recipe, "--config.objective.name=flow", f"--workdir={tmp_path / 'run'}"]) == 2
    first, _ = refusal(capsys.readouterr().err)
    assert "config.model.name=mlp and config.objective.name=flow do not go together" in first
