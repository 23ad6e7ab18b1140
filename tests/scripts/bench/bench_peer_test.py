"""bench.py's peers: the protocol, from both its ends, and what is made of the times. No torch: the peers here are a few lines of Python."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import bench as bench_script
import bench_peer
import pytest

from tinygen import build

SCRIPTS = Path(__file__).parents[3] / "scripts" / "bench"
# Speaks the protocol and claims times; what each mode does is its own.
FAKE = """
import json, os, sys
options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
mode = options["mode"]
if mode == "compile_bf16":
    print("it crashed here", file=sys.stderr)
    sys.exit(3)
print(json.dumps({"ready": {"parameters": 7, "threads": 2, "options": options}}), flush=True)
for number, line in enumerate(sys.stdin):
    assert line == "turn\\n"
    with open(os.environ["ORDER"], "a") as order:
        order.write(mode + "\\n")
    if mode == "compile" and number == 3:
        sys.exit("out of memory")
    claimed = {"eager": [9.0, 2.0, 4.0, 4.0, 6.0], "bf16": [90.0, 50.0], "compile": [5.0] * 9}[mode]
    print(json.dumps({"seconds": claimed[number]}), flush=True)
"""


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """bench.py with a step of ours that takes 1, 2 and 3 seconds, and with peers that are fakes."""
    module, race = bench_script, bench_script.race
    worker, order = tmp_path / "fake.py", tmp_path / "order"
    worker.write_text(FAKE)
    monkeypatch.setenv("ORDER", str(order))
    monkeypatch.setattr(module.peer, "WORKER", worker)
    monkeypatch.setattr(module.machine, "busy_share", lambda: 0.0)
    monkeypatch.setattr(module.ours, "prepare_process", lambda: False)
    monkeypatch.setattr(build, "best_precision", lambda backend: "float32")

    def work(config, codec):
        return module.ours.Work(lambda: None, dict(trace=1.0, lower=1.0, compile=1.0), 4 * 10**9, 33)

    def timed(run):
        seconds = iter([1.0, 2.0, 3.0])

        def turn():
            with order.open("a") as lines:
                lines.write("ours\n")
            return next(seconds)

        return turn

    monkeypatch.setitem(race.WORKS, "step", work)
    monkeypatch.setattr(race.turns, "timed", timed)
    monkeypatch.setattr(race.products, "measure", lambda seconds: [dict(operands="float32", shape=[1, 1, 1], flops_per_s=[4e9, 8e9])])
    return module


@pytest.fixture
def raced(bench, tmp_path):
    """raced(*arguments): (status, the result, the order of turns) of `bench.py step` with the fakes."""

    def run(*arguments):
        path = tmp_path / "result.json"
        status = bench.main(["step", "--rounds=3", f"--peer={sys.executable}", f"--json={path}", *arguments])
        order = tmp_path / "order"
        return status, json.loads(path.read_text()) if path.exists() else {}, order.read_text().split() if order.exists() else []

    return run


def test_a_peer_takes_turns_with_ours_and_is_compared_round_by_round(raced, capsys):
    status, result, order = raced("--peer_modes=eager", "--width=64", "--batch_size=16")
    assert status == 0
    assert order == ["eager", "eager", "ours", "eager", "eager", "ours", "ours", "eager"]  # two to warm up, then rounds
    ours, peer = result["runs"][0]["contestants"]
    assert (ours["seconds"], peer["seconds"]) == ([1.0, 2.0, 3.0], [4.0, 4.0, 6.0])
    assert peer["ratio"] == 2.0  # of 4, 2, 2
    assert (ours["images_per_s"], peer["images_per_s"]) == (16 / 2, 16 / 4)
    assert (ours["flops_per_s"], ours["share"], peer["first_turn_s"]) == (2e9, 0.25, 9.0)
    passed = {key: int(value) for key, value in peer["options"].items() if key not in ("work", "mode")}
    assert passed == dict(size=32, channels=4, patch=2, width=64, depth=12, heads=1, classes=1000, batch_size=16, nfe=50)
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "25% float32" in rows["tinygen"]
    assert rows["tinygen"].endswith("1.00x")
    assert rows["peer eager"].endswith("2.00x")


def test_other_settings_of_ours_are_compared_by_images_a_second(raced):
    result = raced("--peer=", "--against", "batch_size=32")[1]
    first, second = result["runs"][0]["contestants"]
    assert (second["name"], second["batch_size"]) == ("batch_size=32", 32)
    assert (first["ratio"], second["ratio"]) == (1.0, 0.25)  # the same seconds for four times as many


def test_a_slow_peer_has_one_turn_and_no_round(raced, capsys):
    status, result, order = raced("--peer_modes=bf16,eager", "--peer_patience=20")
    assert (status, order.count("bf16"), order.count("eager")) == (0, 2, 5)
    slow = result["runs"][0]["contestants"][1]
    assert (slow["raced"], slow["seconds"], slow["first_turn_s"]) == (False, [50.0], 90.0)
    assert slow["ratio"] == 25.0
    assert "25.00x  (a single turn" in capsys.readouterr().out


def test_a_peer_that_gives_no_answer_in_time_is_reported_and_ended(raced, monkeypatch, capsys):
    limits = []

    def select(read, write, error, limit):
        limits.append(limit)
        return (read if len(limits) == 1 else []), [], []

    monkeypatch.setattr(bench_script.peer, "select", SimpleNamespace(select=select))
    status, result, _ = raced("--peer_modes=eager", "--peer_patience=3")
    assert status == 0
    assert limits == [30.0, 30.0]  # until it was ready, and for its first turn
    peer = result["runs"][0]["contestants"][1]
    assert (peer["raced"], peer["seconds"], peer["first_turn_s"]) == (False, [], None)
    assert "timed out (--peer_patience)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peer_modes=compile_bf16"], "peer compile_bf16 died with status 3: it crashed here"),
        (["--peer_modes=compile"], "peer compile died with status 1: out of memory"),
        (["--peer=/no/such/python"], "--peer=/no/such/python: No such file or directory"),
        (["--peer_modes=eager", "--shape=32,16,4"], "--peer needs square images"),
    ],
)
def test_a_peer_that_fails_is_one_line_and_status_2(raced, arguments, said, capsys):
    status, result, _ = raced(*arguments)
    error = capsys.readouterr().err
    assert (status, result) == (2, {})
    assert said in error
    assert error.count("\n") == 1


OPTIONS = dict(work="step", mode="eager", size=8, channels=3, patch=2, width=16, depth=1, heads=2, classes=4, batch_size=2, nfe=2)


def test_an_interpreter_without_torch_is_reported(raced, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_script.peer, "WORKER", SCRIPTS / "bench_peer.py")
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert raced("--peer_modes=eager")[0] == 2
    assert f"{sys.executable}: no torch here (--peer needs an interpreter with torch and diffusers)" in capsys.readouterr().err


def test_the_worker_speaks_the_protocol_alone_on_its_standard_output():
    code = """
import sys, bench_peer
bench_peer.prepare = lambda options: (lambda: print("a library's chatter"), {"parameters": options.width})
sys.exit(bench_peer.main())
"""
    spoken = subprocess.run(
        [sys.executable, "-c", code, *(f"--{name}={value}" for name, value in OPTIONS.items())],
        input="turn\nturn\n",
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert spoken.returncode == 0, spoken.stderr
    ready, *turns = map(json.loads, spoken.stdout.splitlines())
    assert ready == {"ready": {"parameters": 16}}
    assert [list(turn) for turn in turns] == [["seconds"]] * 2
    assert spoken.stderr.count("a library's chatter") == 2


def test_both_ends_know_the_same_modes(bench):
    assert bench_peer.MODES == bench.peer.MODES
