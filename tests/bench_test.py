import importlib.util
import json
from pathlib import Path

import pytest

from tinygen import build, footprint, runtime, train


@pytest.fixture
def bench(monkeypatch):
    spec = importlib.util.spec_from_file_location("bench", Path(__file__).parents[1] / "scripts" / "bench.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(runtime, "keep_memory", lambda: None)  # for a process of its own
    return module


@pytest.fixture
def recipe(tiny, tmp_path):
    path = tmp_path / "recipe.py"
    config = tiny(train=dict(steps=40, log_every=3)).to_dict()
    path.write_text(f"from tinygen.config import base\n\ndef get_config(variant=''):\n    return base(**{config!r})\n")
    return path


def test_a_busy_machine_is_refused_unless_it_is_forced(bench, recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "busy_share", lambda: 0.5)
    monkeypatch.setattr(bench, "measure_loop", lambda recipe, steps: pytest.fail("measured"))
    assert bench.main(["loop", f"--config={recipe}"]) == 2
    assert "others use 50% of this machine's processors" in capsys.readouterr().err

    result = dict(recipe="r", batch_size=1, parameters=1, devices="1", cores=2, jax="", block=1, goal=0.03, overhead=0.0)
    result |= dict(bare_ms=[1.0], loop_ms=[1.0], overheads=[0.0])
    monkeypatch.setattr(bench, "measure_loop", lambda recipe, steps: result)
    assert bench.main(["loop", f"--config={recipe}", "--force"]) == 0
    assert "FALSE NUMBERS" in capsys.readouterr().out


def test_blocks_of_the_real_loop_take_turns_with_the_bare_step(bench, recipe, tmp_path, monkeypatch, capsys):
    """The number of steps that each took, not their time."""
    monkeypatch.setattr(bench, "busy_share", lambda: 0.0)
    order = []
    advance = train.Record.advance

    class Counted:
        """A jitted or compiled step that notes its calls."""

        def __init__(self, step):
            self.step = step

        def __call__(self, state, batch):
            order.append("step")
            return self.step(state, batch)

        def __getattr__(self, name):
            return getattr(self.step, name)

    def counting(make):
        return lambda *arguments: Counted(make(*arguments))

    def advancing(self, step):
        order.append("loop")
        advance(self, step)

    monkeypatch.setattr(build, "train_step", counting(build.train_step))
    monkeypatch.setattr(footprint, "compiled_step", counting(footprint.compiled_step))
    monkeypatch.setattr(train.Record, "advance", advancing)
    assert bench.main(["loop", f"--config={recipe}", "--steps=6", f"--json={tmp_path / 'bench.json'}"]) == 0
    looped, bare = ["step", "loop"] * 3, ["step"] * 3
    assert order.pop(0) == "step"  # traced once, for its operations
    assert order == [*looped, *bare, *bare, *looped, *bare, *looped, *bare, "step", "loop"]  # the first of each warms up; the last saves

    result = json.loads((tmp_path / "bench.json").read_text())
    assert len(result["bare_ms"]) == len(result["loop_ms"]) == len(result["overheads"]) == 2
    assert min(*result["bare_ms"], *result["loop_ms"]) > 0
    for bare_ms, loop_ms, overhead in zip(result["bare_ms"], result["loop_ms"], result["overheads"], strict=True):
        assert overhead == pytest.approx(loop_ms / bare_ms - 1)
    assert "median" in capsys.readouterr().out


def test_the_steps_of_two_recipes_take_turns_and_are_compared_round_by_round(bench, recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "busy_share", lambda: 0.0)
    arguments = ["--configs", str(recipe), str(recipe), "--shape=8,8,3", "--batch_size=8", "--rounds=3", f"--json={tmp_path / 'b.json'}"]
    assert bench.main(["steps", *arguments]) == 0
    result = json.loads((tmp_path / "b.json").read_text())
    assert result["parameters"][0] == result["parameters"][1] > 0
    assert [len(own) for own in result["seconds"]] == [3, 3]
    ratios = sorted(a / b for a, b in zip(*result["seconds"], strict=True))
    assert result["speed"] == pytest.approx([1.0, ratios[1]])
    assert capsys.readouterr().out.count("recipe.py") == 2
