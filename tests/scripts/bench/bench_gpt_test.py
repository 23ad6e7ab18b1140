"""bench_gpt.py on the smallest of models. No torch: the peer here is a few lines of Python."""

import json
import os
import re
import sys
from pathlib import Path

import bench_gpt
import bench_gpt_peer
import pytest
from benchmarks import gpt_step, worker

from tinygen.system import malloc, runtime

ROOT = Path(__file__).parents[3]
SMALL = f"--config={ROOT}/configs/gpt_shakespeare.py:smoke"
FAKE = """
import json, sys
options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
print(json.dumps({"ready": {"parameters": int(options["hidden"])}}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": 1000.0}), flush=True)
"""


@pytest.fixture(autouse=True)
def own_process(monkeypatch):
    for module, name in ((malloc, "retain_freed_memory"), (runtime, "disable_async_dispatch")):  # for a process of its own
        monkeypatch.setattr(module, name, bool)
    monkeypatch.setattr(bench_gpt.machine, "busy_share", lambda: 0.0)
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])  # put back in the end


def table(capsys, *words):
    assert bench_gpt.main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_step_takes_turns_with_a_peer_of_the_same_size(capsys, monkeypatch, tmp_path):
    (fake := tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(gpt_step, "WORKER", fake)
    said = table(
        capsys, "step", SMALL, "--vocabulary=300", "--rounds=1", f"--peer={sys.executable}", "--peer_modes=eager", "--peer_patience=2000"
    )
    rows = [line for line in said.splitlines() if line.startswith(("the recipe", "GPT-2"))]
    assert len(rows) == 6
    assert all(float(re.search(r"([\d.]+)x$", row)[1]) > 100 for row in rows)
    assert re.search(r"^peer eager +128 +1000000.0 +0 +1.00x$", said, re.MULTILINE)


@pytest.mark.slow
def test_a_cache_writes_what_full_passes_write(capsys):
    said = table(capsys, "decoding", SMALL, "--vocabulary=300", "--num=2", "--rounds=1")
    assert "100.00% of the tokens are the same" in said
    assert int(re.search(r"\((\d+) distinct", said)[1]) > 8


@pytest.mark.slow
def test_the_loss_in_pieces_takes_less(capsys):
    said = table(capsys, "loss", SMALL, "--vocabulary=5000", "--batch_size=16", "--set=objective.logits_mib=1")
    whole, pieces = (float(number) for number in re.search(r"the loss alone +([\d.]+) +([\d.]+)", said).groups())
    assert pieces < 0.4 * whole


@pytest.mark.slow
def test_every_mesh_shares_the_work_and_one_with_a_model_axis_the_state_too(capsys):
    said = table(capsys, "meshes", SMALL, "--vocabulary=300", "--batch_sizes=8,16", "--steps=1")
    rows = [line.split() for line in said.splitlines()[2:]]
    rows = {(row[0], row[1]): [float(number.replace(",", "")) for number in row[2:]] for row in rows if "x" in row[1]}
    assert rows.keys() == {("8", "8x1"), ("8", "4x2"), ("16", "8x1"), ("16", "4x2")}
    assert all(row[5] > 0 for row in rows.values())
    assert rows["8", "4x2"][1] < 0.7 * rows["8", "8x1"][1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["meshes", "--meshes=8"], "'8' is not a list of DATAxTENSOR meshes"),
        (["meshes", "--meshes=2x1,4x2"], "with equally many devices"),
        (["meshes", "--meshes=ax2"], "'ax2' is not a list of DATAxTENSOR meshes"),
        (["meshes", "--steps=-1"], "-1 is not a positive integer"),
        (["meshes", SMALL, "--vocabulary=300", "--batch_sizes=3"], "config.batch_size=3"),
        (["loss", "--vocabulary=many"], "many must be between 258 and 65,536"),
        (["step", f"--config={ROOT}/configs/dit_digits.py"], "is not a recipe of a language model: it trains 'microdit' on 'digits'"),
        (["loss", "--vocabulary=100"], "100 must be between 258 and 65,536"),
        (["loss", SMALL, "--set=model.wide=3"], "config key"),
        (["step", "--peer_modes=fast"], "unknown mode 'fast': choose from eager"),
        (["decoding", "--config=nowhere.py"], "no config file 'nowhere.py'"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused_in_a_line(words, said, capsys):
    try:
        status = bench_gpt.main(words)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["step", "decoding"])
def test_a_busy_machine_is_not_timed(command, monkeypatch, capsys):
    monkeypatch.setattr(bench_gpt.machine, "busy_share", lambda: 0.5)
    assert bench_gpt.main([command]) == 2
    assert "other processes use 50% of the CPU, so timings would be unreliable" in capsys.readouterr().err


def test_a_peer_without_torch_says_so(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("sys.argv", ["peer", "--mode=eager", *(f"--{name}=8" for name in bench_gpt_peer.SIZES)])
    monkeypatch.setattr(worker.os, "dup2", lambda *_: None)
    assert bench_gpt_peer.main() == 1
    assert "torch" in json.loads(capfd.readouterr().out)["error"]
