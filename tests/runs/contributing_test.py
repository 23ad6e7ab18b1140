"""The examples of CONTRIBUTING.md work as they stand there."""

import io
import re
import types
import wave
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.config import data, models, objectives, schema
from tinygen.data.condition import Request
from tinygen.errors import UserError
from tinygen.evaluation import scores
from tinygen.samplers import fixed_step, table

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
BLOCKS = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def example(path, module=None):
    """(what the page's only block for a file defines beside the names of `module`, the rows of a table that it shows)"""
    (text,) = [text for name, text in BLOCKS if name == path]
    code, row, entries = text.partition(first[0]) if (first := re.search(r'^    "\w+": ', text, re.MULTILINE)) else (text, "", "")
    names = dict(vars(module)) if module else {"__name__": "example"}
    exec(compile(code, path, "exec"), names)
    return types.SimpleNamespace(**names), eval(f"{{{row}{entries}}}", names)


@pytest.fixture
def added(monkeypatch):
    """Adds the page's model, data set, objective and sampler."""
    for module, declared in ((models, schema.MODELS), (data, schema.DATASETS), (objectives, schema.OBJECTIVES)):
        ((name, row),) = example(f"tinygen/config/{module.__name__.rpartition('.')[2]}.py", module)[1].items()
        monkeypatch.setitem(declared, name, row)
    monkeypatch.setitem(build.MODELS, "unet", example("tinygen/models/unet.py")[0].UNet)
    monkeypatch.setitem(build.OBJECTIVES, "huber", example("tinygen/objectives/huber.py")[0].Huber)
    monkeypatch.setitem(build.datasets(), "discs", example("tinygen/data/discs.py")[0].discs)
    monkeypatch.setitem(table.SAMPLERS, "ralston", example("tinygen/samplers/fixed_step.py", fixed_step)[1]["ralston"])


def test_the_model_learns_the_data_set_and_is_sampled_by_the_sampler(added, tmp_path, metrics_of):
    config = config_lib.base(
        data=dict(name="discs", num=40, size=8),
        model=dict(name="unet", width=8),
        objective=dict(name="flow", sampler="ralston", nfe=4),
        batch_size=8,
        train=dict(steps=2, log_every=1, eval_every=0, preview_every=2, preview_num=4, checkpoint_every=0),
    )
    assert train.main(config, str(tmp_path / "run")) == 0
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 2]
    assert {path.name for path in (tmp_path / "run" / "samples").iterdir()} == {"000001.png", "000002.png"}


def test_the_sampler_is_of_second_order(added):
    def error(steps):  # of dx/dt = x, which falls to 1/e from t = 1 to 0
        grid, given = np.linspace(1, 0, steps + 1), types.SimpleNamespace(path=None)
        return table.SAMPLERS["ralston"].integrate(lambda x, t, r: x, jnp.ones(1), grid, given)[0][0] - np.exp(-1)

    assert error(8) / error(16) == pytest.approx(4, rel=0.1)


def test_the_objective_measures_errors_linearly_beyond_delta(added):
    batch = {"x": np.zeros((4, 1), np.float32), "y": np.full((4, 1), 3, np.float32)}
    loss, metrics = build.OBJECTIVES["huber"](delta=1.0).loss(lambda x, rngs: x, batch, jax.random.key(0), train=False)
    assert float(loss) == pytest.approx(2.5)
    assert float(metrics["absolute_error"][0] / metrics["absolute_error"][1]) == pytest.approx(3)


def test_the_medium_writes_the_wave_that_was_drawn():
    medium = example("tinygen/media/wave.py")[0].Wave()
    items = medium.decode(np.sin(np.arange(200, dtype=np.float32)).reshape(2, 100, 1))
    with wave.open(io.BytesIO(medium.encode(medium.overview(items)))) as read:
        np.testing.assert_array_equal(np.frombuffer(read.readframes(200), "<i2"), items.ravel())


def test_the_condition_takes_what_is_asked_for_in_turn():
    amounts = example("tinygen/data/amounts.py")[0].Amounts()
    np.testing.assert_allclose(amounts.encode(Request(labels=("0.2", "0.8")), 3)["amount"], [0.2, 0.8, 0.2], rtol=1e-6)
    with pytest.raises(UserError, match="between 0 and 1"):
        amounts.encode(Request(labels=("2",)), 1)


def test_the_score_is_the_distance_of_the_means(toy_network):
    score = example("tinygen/evaluation/scores.py", scores)[1]["mean"]
    zeros, ones = (scores.side_of("some", "abc", np.full((3, 4), value, np.float32)) for value in (0, 1))
    assert score.compute(zeros, ones, toy_network()) == {"mean_toy": pytest.approx(2)}
