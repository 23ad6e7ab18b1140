"""The script that times Inception-v3 beside pytorch-fid's: what it refuses. No torch."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("bench_features")


def test_a_turn_is_of_whole_batches(bench, capsys):
    assert bench.main(["--images=12", "--batch_size=4,8"]) == 2
    assert "--images=12 is not a multiple of --batch_size=8" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="this interpreter could be a peer")
def test_a_peer_without_torch_says_so_before_ours_is_compiled(bench, capsys):
    assert bench.main([f"--peer={sys.executable}", "--images=8", "--batch_size=8"]) == 2
    assert f"{sys.executable}: No module named 'torch'" in capsys.readouterr().err
