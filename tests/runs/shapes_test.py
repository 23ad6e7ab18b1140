"""Pictures that are not square, from files to a score."""

import json

import numpy as np
import pytest
from PIL import Image

from tinygen.cli import main as cli
from tinygen.evaluation.features import load

HEIGHT, WIDTH, NUM = 5, 11, 24


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Pictures of two colours in a folder each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    numbers = np.random.default_rng(0)
    for index in range(NUM):
        place = tmp_path / "photos" / ("dark", "light")[index % 2] / f"{index}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 128, (HEIGHT, WIDTH, 3), np.uint8) + np.uint8(127 * (index % 2))).save(place)
    return tmp_path / "photos"


def test_pictures_that_are_not_square_are_trained_on_drawn_scored_and_reported(photos, tmp_path, monkeypatch, toy_network):
    monkeypatch.setattr(load, "load", lambda *_, **options: toy_network())
    recipe, run, drawn = tmp_path / "mine.py", tmp_path / "run", tmp_path / "drawn"
    recipe.write_text(
        "from tinygen.config import base\n\n"
        "def get_config(variant=''):\n"
        f"    return base(data=dict(name='folder', path={str(photos)!r}, size=({HEIGHT}, {WIDTH}), min_side=1, validation=0.4),\n"
        "        model=dict(name='microdit', patch=4, width=16, depth=1, heads=2, mlp_multiple=8, mask=0.5), batch_size=8,\n"
        "        objective=dict(name='flow', nfe=4), train=dict(steps=2, eval_every=0, preview_every=0))\n"
    )
    assert cli.main(["train", f"--config={recipe}", f"--workdir={run}"]) == 0
    assert cli.main(["sample", f"--ckpt={run}", f"--num={NUM}", "--batch_size=8", f"--out={drawn}"]) == 0
    (first, *others) = sorted(drawn.glob("0*.png"))
    assert len(others) == NUM - 1
    with Image.open(first) as image:
        assert image.size == (WIDTH, HEIGHT)
    for given in ([f"--ckpt={run}", "--batch_size=8"], [f"--samples={drawn}", f"--ref={photos}"]):
        assert cli.main(["eval-fid", *given, f"--num={NUM}", "--force", f"--out={tmp_path / 'scores.jsonl'}"]) == 0
    ours, folders = (json.loads(line)["fd_toy"] for line in (tmp_path / "scores.jsonl").read_text().splitlines())
    assert min(ours, folders) > 0
    assert cli.main(["report", f"--workdir={run}"]) == 0
