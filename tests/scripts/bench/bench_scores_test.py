"""bench_scores.py, with small sizes."""

import re

import bench_scores


def test_it_says_time_error_and_memory(capsys):
    assert bench_scores.main(["--dim=40", "--num=2500"]) == 0
    distance, memory = capsys.readouterr().out.splitlines()
    assert float(re.search(r"([\d.e-]+) relative", distance)[1]) < 1e-8
    assert 0 < int(re.search(r"(\d+) MiB", memory)[1]) < 10
