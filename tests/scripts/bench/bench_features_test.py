"""The script that times Inception-v3 beside pytorch-fid's: what it refuses. No torch."""

import sys

import bench_features


def test_a_turn_is_of_whole_batches(capsys):
    assert bench_features.main(["--images=12", "--batch_size=4,8"]) == 2
    assert "--images=12 is not a multiple of --batch_size=8" in capsys.readouterr().err


def test_a_peer_without_torch_says_so_before_ours_is_compiled(capsys, tmp_path):
    bare = tmp_path / "python"  # without any package, whatever this one has
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    assert bench_features.main([f"--peer={bare}", "--images=8", "--batch_size=8"]) == 2
    assert "No module named 'torch' (--peer needs an interpreter with torch, torchvision and pytorch-fid)" in capsys.readouterr().err
