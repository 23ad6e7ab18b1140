"""What is compiled, how often, and where it stays: programs are compiled once a run, and the next process finds them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from etils import epath

import tinygen
from tinygen import build, train
from tinygen.profiling import footprint
from tinygen.sampling import preview
from tinygen.system import compilation_cache, runtime
from tinygen.train_step import init_state
from tinygen.training import held_out
from tinygen.training import program as programs

COMPILES = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def compilations():
    """A list that gets the name of every program that is compiled from here on, or read from the cache."""
    names = []

    def heard(event, duration_secs, **facts):
        if event == COMPILES:
            names.append(facts.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(heard)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_a_run_compiles_each_program_once(curve, machine_of, tmp_path, compilations, size):
    """Evaluation, preview and save come three times each."""
    machine_of(2)
    config = curve(mesh=dict(fsdp=2), sharding=dict(min_size=8), train=dict(steps=15, eval_every=5, preview_every=5, checkpoint_every=5))
    config.train.steps_per_call = size
    at = {}
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    del compilations[:]
    with runtime.stop_on_signals() as stop:
        train.run(config, epath.Path(tmp_path), source, parts, stop, after_step=lambda step, state: at.setdefault(step, len(compilations)))
    assert len(compilations) == at[5], compilations[at[5] :]  # by then each has been used
    step = "train_step" if size == 1 else "train_steps"
    assert sorted(compilations) == [f"jit({name})" for name in ("draw", "init_state", "numbered", step)]
    assert len(set(range(1, 6)) & at.keys()) == (5 if size == 1 else 3)  # the loop took what it should


def test_the_compiled_step_writes_the_state_over_itself(curve, made):
    for size in (1, 3):
        run = made(curve(train=dict(steps_per_call=size)), 1, 2, 1)
        parts = build.parts(run.config, build.data_source(run.config).codec)
        program = programs.make_program(run.config, parts).compiled()
        held = footprint.bytes_held(footprint.placed(run.abstract, parts.layout))
        assert program.memory_analysis().alias_size_in_bytes == held > 0


def test_evaluation_and_previews_make_no_copy_of_the_state(curve):
    """What they give is small, and the state is not among it."""
    config = curve(model=dict(hidden=4096))
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    state = init_state(parts.create, build.optimizer(config)[0], 0)
    held = footprint.bytes_held(state)
    with jax.set_mesh(parts.layout.mesh):
        evaluate = held_out.make_held_out(config, source, parts)
        for use in (lambda state: evaluate(state.ema, state.buffers), preview.make_preview(config, source, parts)):
            use(state)
            before = sum(array.nbytes for array in jax.live_arrays())
            use(state)
            assert sum(array.nbytes for array in jax.live_arrays()) - before < held / 10
            assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


SCRIPT = """
import collections, json, sys
import jax
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event]))
from tinygen.cli.main import main
status = main(sys.argv[1:])
told = {name.split("/")[-1]: count for name, count in counts.items()}
print(json.dumps({"status": status, "folder": jax.config.jax_compilation_cache_dir, **told}))
"""


def start(workdir, home, *words, **environment):
    """Trains the smallest recipe in a process of its own, whose user has that cache folder. Gives (what JAX did, stderr)."""
    unset = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL")
    own = {name: value for name, value in os.environ.items() if name not in unset}
    own |= {"XDG_CACHE_HOME": str(home), "PYTHONPATH": str(Path(tinygen.__file__).parents[1]), **environment}
    recipe = Path(__file__).parents[2] / "configs" / "fsdp_sine.py"
    command = [sys.executable, "-c", SCRIPT, "train", f"--config={recipe}:smoke", f"--workdir={workdir}", "--config.train.steps=3", *words]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_a_second_start_compiles_nothing_learns_the_same_and_says_nothing_of_it(tmp_path, metrics_of, saved_arrays):
    first, _ = start(tmp_path / "a", tmp_path / "home")
    second, said = start(tmp_path / "b", tmp_path / "home")
    assert first["status"] == second["status"] == 0
    assert first["folder"] == second["folder"] == str(tmp_path / "home" / "tinygen" / "compilation")
    assert first["cache_misses"] == second["cache_hits"] >= 4  # init, step, evaluation, preview
    assert "cache_misses" not in second
    assert metrics_of(tmp_path / "a") == metrics_of(tmp_path / "b")
    bits = [{name: array.tobytes() for name, array in saved_arrays(tmp_path / each, 3).items()} for each in "ab"]
    assert bits[0] == bits[1]
    assert not [line for line in said.splitlines() if "AOT" in line or "cache" in line.lower() or "warning" in line.lower()]


@pytest.mark.slow
def test_a_program_that_was_torn_is_written_again_and_nothing_is_said(tmp_path):
    folder = tmp_path / "home" / "tinygen" / "compilation"
    first, _ = start(tmp_path / "a", tmp_path / "home")
    sizes = {path.name: path.stat().st_size for path in folder.glob("*-cache")}
    for name in sizes:
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
    second, said = start(tmp_path / "b", tmp_path / "home")
    assert first["cache_misses"] == second["cache_misses"] == len(sizes)
    assert {path.name: path.stat().st_size for path in folder.glob("*-cache")}.keys() == sizes.keys()
    assert all(path.stat().st_size > 100 for path in folder.glob("*-cache"))
    assert "cache" not in said.lower()
    assert "warning" not in said.lower()


@pytest.mark.slow
def test_a_folder_that_cannot_be_used_costs_one_line(tmp_path):
    (tmp_path / "home").write_text("a file, where a folder should be")
    told, said = start(tmp_path / "run", tmp_path / "home")
    assert (told["status"], told["folder"]) == (0, None)
    assert len([line for line in said.splitlines() if "the compilation cache is disabled" in line]) == 1
    assert "Traceback" not in said


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """JAX's settings as in a process where nothing has been set, and a cache folder of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_compilation_cache")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    with contextlib.ExitStack() as stack:
        for name, value in before.items():
            stack.callback(jax.config.update, name, value)
        yield jax.config


def test_jax_own_switch_and_folder_win(settings, tmp_path):
    settings.update("jax_enable_compilation_cache", False)
    compilation_cache.enable()
    assert settings.jax_compilation_cache_dir is None
    settings.update("jax_enable_compilation_cache", True)
    settings.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    compilation_cache.enable()
    assert settings.jax_compilation_cache_dir == str(tmp_path / "mine")
    assert not (tmp_path / "tinygen").exists()


def test_a_full_disk_is_left_alone(settings, monkeypatch, capsys):
    free = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(compilation_cache.shutil, "disk_usage", lambda folder: free)
    compilation_cache.enable()
    assert settings.jax_compilation_cache_dir is None
    assert "No space left" in capsys.readouterr().err
