import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import bench as bench_script
import pytest
from benchmarks import machine

from tinygen.system import malloc, runtime
from tinygen.training import program
from tinygen.workdir import logger

SCRIPTS = Path(__file__).parents[3] / "scripts" / "bench"


@pytest.fixture
def bench(monkeypatch):
    for module, name in ((malloc, "retain_freed_memory"), (runtime, "disable_async_dispatch")):  # for a process of its own
        monkeypatch.setattr(module, name, bool)
    monkeypatch.setattr(bench_script.machine, "busy_share", lambda: 0.0)
    return bench_script


@pytest.fixture
def recipe(tiny, tmp_path):
    path = tmp_path / "recipe.py"
    config = tiny(train=dict(steps=40, log_every=3)).to_dict()
    path.write_text(f"from tinygen.config import base\n\ndef get_config(variant=''):\n    return base(**{config!r})\n")
    return path


@pytest.fixture
def asked(bench, monkeypatch):
    """asked("step", ...): the arguments of `race.measure` for a command line."""

    def run(*arguments):
        calls = []
        monkeypatch.setattr(bench.race, "measure", lambda *args, **kwargs: calls.append((args, kwargs)) or {})
        monkeypatch.setitem(bench.COMMANDS, arguments[0], bench.COMMANDS[arguments[0]]._replace(table=lambda result: ""))
        assert bench.main(list(arguments)) == 0
        (work, sizes, shape, settings, against), keywords = calls[0]
        return dict(work=work, sizes=sizes, shape=shape, settings=settings, against=against, **keywords)

    return run


@pytest.mark.parametrize("command", ["products", "step", "sampling", "compile", "loop", "steps --configs recipe.py"])
def test_a_busy_machine_is_refused_unless_it_is_forced(bench, command, monkeypatch, capsys):
    measured = []
    monkeypatch.setattr(bench.machine, "busy_share", lambda: 0.5)
    name, *rest = command.split()
    own = bench.COMMANDS[name]._replace(measure=lambda arguments: measured.append(1) or {}, table=lambda result: f"{result['busy_before']}")
    monkeypatch.setitem(bench.COMMANDS, name, own)
    assert bench.main([name, *rest]) == 2
    assert "other processes use 50% of the CPU" in capsys.readouterr().err
    assert not measured
    assert bench.main([name, *rest, "--force"]) == 0
    assert measured
    assert "0.5" in capsys.readouterr().out


def test_the_numbers_of_a_busy_machine_are_called_unreliable(bench):
    assert bench.machine.caution(0.02) == []
    assert "UNRELIABLE: other processes used 50%" in bench.machine.caution(0.5)[0]


def test_what_is_measured_by_default_is_a_dit_s_2_in_training_and_by_euler_in_sampling(bench, asked):
    step, sampling = asked("step"), asked("sampling")
    (chosen,) = bench.ours.grid(step["sizes"])
    config = bench.ours.configuration(chosen, step["settings"])
    assert {name: config.model[name] for name in ("width", "depth", "heads", "patch")} == dict(width=384, depth=12, heads=6, patch=2)
    assert (config.batch_size, step["shape"], config.objective.name, config.optim.clip) == (8, [32, 32, 4], "flow", 1.0)
    (chosen,) = bench.ours.grid(sampling["sizes"])
    config = bench.ours.configuration(chosen, sampling["settings"])
    assert config.batch_size == 64
    assert (config.objective.sampler, config.objective.nfe, config.objective.guidance) == ("euler", 50, 1.0)


def test_lists_of_sizes_are_a_grid_whose_heads_have_64_features(bench, asked):
    sizes = asked("step", "--width=128,256", "--batch_size=8,16")["sizes"]
    grid = [(each["width"], each["batch_size"], each["heads"]) for each in bench.ours.grid(sizes)]
    assert grid == [(128, 8, 2), (128, 16, 2), (256, 8, 4), (256, 16, 4)]


def test_settings_and_those_of_other_contestants_are_told_apart(asked):
    found = asked(
        "step", "--set", "optim.clip=0", "--against", "precision=bfloat16", "optim.lr=1", "--against", "ema.decay=0", "--set=seed=1"
    )
    assert found["settings"] == ["optim.clip=0", "seed=1"]
    assert found["against"] == [["precision=bfloat16", "optim.lr=1"], ["ema.decay=0"]]


@pytest.mark.parametrize("wrong", ["--rounds=0", "--peer_modes=eager,quick", "--width=wide", "--product_seconds=-1", "--peer_patience=nan"])
def test_arguments_that_make_no_sense_are_refused(bench, wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["step", wrong])
    assert wrong.split("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--set=train.steps_per_call=4"], "`bench.py calls` times several steps per call"),
        (["--peer=python", "--set=objective.sampler=heun"], "--peer does not support objective.sampler=heun"),
        (["--json=nowhere/x.json"], "no such folder: nowhere"),
    ],
)
def test_what_would_be_measured_in_vain_is_refused_before(bench, wrong, said, capsys):
    assert bench.main(["step", "--product_seconds=0", "--depth=1", "--width=16", "--heads=2", "--shape=8,8,3", *wrong]) == 2
    assert said in capsys.readouterr().err


def test_settings_are_typed_as_the_command_line_types_them(bench, tiny):
    changed = bench.ours.override(
        tiny(), ["optim.lr=1", "precision=bfloat16", "model.qk_norm=false", "objective.guidance_interval=(0.1, 0.5)"]
    )
    assert (changed.optim.lr, changed.precision, changed.model.qk_norm) == (1.0, "bfloat16", False)
    assert changed.objective.guidance_interval == (0.1, 0.5)
    assert tiny().precision == "float32"
    assert bench.ours.override(tiny(), ["model.name=mlp", "model.hidden=32"]).model.hidden == 32


@pytest.mark.parametrize(
    ("setting", "said"),
    [("optim.lrr=1", "did you mean 'optim.lr'"), ("batch_size=many", "batch_size=many: "), ("precision=half", "unknown config.precision")],
)
def test_a_setting_that_cannot_be_made_is_one_line(bench, setting, said, capsys):
    assert bench.main(["step", "--product_seconds=0", f"--set={setting}"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_contestants_take_turns_in_an_order_that_turns_round_every_time(bench):
    order = []
    turns = [lambda name=name: order.append(name) or float(len(order)) for name in "abc"]
    assert bench.race.turns.take(turns, 3) == [[1.0, 6.0, 7.0], [2.0, 5.0, 8.0], [3.0, 4.0, 9.0]]
    assert "".join(order) == "abccbaabc"


def test_a_ratio_is_the_median_of_the_rounds_own_ratios(bench):
    """The ratio of the medians would be 2 / 4; the machine slowed down after the first round."""
    assert bench.race.turns.ratio([1.0, 10.0, 2.0], [4.0, 20.0, 4.0]) == 2.0


def test_a_processor_is_known_by_name_and_by_what_speeds_up_products(bench, tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_tile avx512_bf16 sse\n\nmodel name\t: Some CPU @ 2 GHz\n")
    assert bench.machine.cpu(info) == ("Some CPU @ 2 GHz", ["avx2", "avx512_bf16", "amx_tile"])
    assert bench.machine.cpu(tmp_path / "none")[1] == []


def test_the_busy_share_is_that_of_ticks_that_were_not_idle(monkeypatch):
    lines = iter(["cpu 100 0 100 700 100 0 0 0 0 0\n", "cpu 130 0 120 740 110 0 0 0 0 0\n"])
    monkeypatch.setattr(Path, "read_text", lambda path: next(lines))
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: None)
    assert machine.busy_share() == pytest.approx(0.5)


def test_a_cold_and_a_warm_process_share_a_cache_that_is_empty_at_first(bench, tiny, monkeypatch):
    told = []

    def compiled(config, codec, cache):
        told.append((cache, [path.name for path in Path(cache).iterdir()]))
        (Path(cache) / "entry").write_bytes(b"four")
        return dict(trace=1.0 * len(told))

    monkeypatch.setattr(bench.compiling, "compile_in_subprocess", compiled)
    found = bench.compiling.cold_and_warm(tiny(), bench.ours.noise_codec((8, 8, 3)))
    assert found == {"cold": {"trace": 1.0}, "warm": {"trace": 2.0}, "cache_bytes": 4}
    assert told == [(told[0][0], []), (told[0][0], ["entry"])]


def test_a_process_that_cannot_compile_is_one_line(bench, monkeypatch, capsys):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\n  ...\nMemoryError: too much\n")
    monkeypatch.setattr(bench.compiling.subprocess, "run", lambda *arguments, **keywords: failed)
    assert bench.main(["compile", "--width=16"]) == 2
    assert capsys.readouterr().err == "bench: the process that compiles the step failed: MemoryError: too much\n"


def test_help_names_every_command_at_once_without_jax():
    code = "import sys, bench\ntry: bench.main(['--help'])\nfinally: assert 'jax' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert all(name in shown.stdout for name in ("products", "step", "sampling", "compile", "loop", "steps", "samples"))


@pytest.mark.slow
def test_blocks_of_the_real_loop_take_turns_with_the_bare_step(bench, recipe, tmp_path, monkeypatch, capsys):
    """Tests the number and order of the steps, not their time."""
    order = []
    advance = logger.RunLogger.advance

    class Counted:
        """A jitted or compiled step that records its calls."""

        def __init__(self, step):
            self.step = step

        def __call__(self, state, batch):
            order.append("step")
            return self.step(state, batch)

        def __getattr__(self, name):
            return getattr(self.step, name)

    def counting(make):
        def counted(*arguments):
            made = make(*arguments)
            return dataclasses.replace(made, step=Counted(made.step))

        return counted

    def advancing(self, step):
        order.append("loop")
        advance(self, step)

    monkeypatch.setattr(program, "make_program", counting(program.make_program))
    monkeypatch.setattr(program, "compiled_aside", lambda traced: SimpleNamespace(result=lambda: Counted(traced.lower().compile())))
    monkeypatch.setattr(logger.RunLogger, "advance", advancing)
    assert bench.main(["loop", f"--config={recipe}", "--steps=6", f"--json={tmp_path / 'bench.json'}"]) == 0
    looped, bare = ["step", "loop"] * 3, ["step"] * 3
    assert order == [*looped, *bare, *bare, *looped, *bare, *looped, *bare, "step", "loop"]  # the first of each warms up; the last saves

    result = json.loads((tmp_path / "bench.json").read_text())
    assert len(result["bare_ms"]) == len(result["loop_ms"]) == len(result["overheads"]) == 2
    assert min(*result["bare_ms"], *result["loop_ms"]) > 0
    for bare_ms, loop_ms, overhead in zip(result["bare_ms"], result["loop_ms"], result["overheads"], strict=True):
        assert overhead == pytest.approx(loop_ms / bare_ms - 1)
    assert "(goal: at most 2%)" in capsys.readouterr().out


@pytest.mark.slow
def test_the_steps_of_two_recipes_take_turns_and_are_compared_round_by_round(bench, recipe, tmp_path, capsys):
    arguments = ["--configs", str(recipe), str(recipe), "--shape=8,8,3", "--batch_size=8", "--rounds=3", f"--json={tmp_path / 'b.json'}"]
    assert bench.main(["steps", *arguments]) == 0
    result = json.loads((tmp_path / "b.json").read_text())
    assert result["parameters"][0] == result["parameters"][1] > 0
    assert [len(own) for own in result["seconds"]] == [3, 3]
    ratios = sorted(a / b for a, b in zip(*result["seconds"], strict=True))
    assert result["speed"] == pytest.approx([1.0, ratios[1]])
    assert capsys.readouterr().out.count("recipe.py") == 2


@pytest.mark.slow
def test_samples_of_more_evaluations_are_timed_beside_those_of_fewer(bench, recipe, tmp_path, capsys):
    arguments = ["--configs", str(recipe), "--shape=8,8,3", "--batch_size=8", "--rounds=2", "--nfe=4,64", f"--json={tmp_path / 'b.json'}"]
    assert bench.main(["samples", *arguments]) == 0
    result = json.loads((tmp_path / "b.json").read_text())
    assert [name.partition(", ")[2] for name in result["recipes"]] == ["nfe 4", "nfe 64"]
    assert result["speed"][0] == 1
    assert [len(own) for own in result["seconds"]] == [2, 2]
    assert "images/s" in capsys.readouterr().out


@pytest.mark.slow
def test_one_step_a_call_and_several_take_blocks_of_the_same_length_in_turns(bench, recipe, monkeypatch, capsys):
    taken = []
    real = bench.calls.turns.take

    def noting(contestants, rounds):
        return real([lambda each=each, index=index: taken.append(index) or each() for index, each in enumerate(contestants)], rounds)

    monkeypatch.setattr(bench.calls.turns, "take", noting)
    assert bench.main(["calls", f"--config={recipe}", "--calls=2", "--block=4", "--rounds=3"]) == 0
    assert taken == [0, 1, 1, 0, 0, 1]
    assert "2  steps per call" in capsys.readouterr().out
    assert bench.main(["calls", f"--config={recipe}", "--calls=3", "--block=4"]) == 2
    assert "--block=4 is not a multiple of --calls=3" in capsys.readouterr().err


@pytest.mark.slow
def test_blocks_with_and_without_the_guards_take_turns_and_the_latter_have_no_branch(bench, recipe, monkeypatch, capsys):
    texts, compiled = [], bench.guards.ours.step_of

    def noting(config, codec):
        step = compiled(config, codec)
        texts.append(step.jitted.lower(step.abstract, step.batch).as_text())
        return step

    monkeypatch.setattr(bench.guards.ours, "step_of", noting)
    assert bench.main(["guards", f"--config={recipe}", "--block=2", "--rounds=3"]) == 0
    assert ["stablehlo.case" in text for text in texts] == [True, False]
    assert "with guards" in capsys.readouterr().out
