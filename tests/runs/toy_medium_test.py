"""A medium and a sampler that the program has never heard of: rows of the tables are all they need."""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest
from sampling import sampled

from tinygen import config as config_lib
from tinygen import eval_fid, media, report, train
from tinygen.checkpoints import store
from tinygen.data.codec import Codec, Field
from tinygen.data.examples import ArrayExamples
from tinygen.data.labels import Labels
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.samplers import fixed_step, table
from tinygen.samplers.paths import Sampler


@dataclasses.dataclass(frozen=True)
class Beads(media.Medium):
    """Strings of dark and light beads: x [L, 1] in [-1, 1]."""

    name: ClassVar[str] = "beads"

    suffix: ClassVar[str] = "string"
    sheet: ClassVar[str] = "all.strings"
    sheet_suffix: ClassVar[str] = "strings"
    element: ClassVar[str] = "pre"

    def decode(self, x):
        return ["".join("o."[int(value < 0)] for value in row) for row in x[..., 0]]

    def encode(self, item):
        return item + "\n"

    def overview(self, items, columns=None):
        return "\n".join(items)

    def log(self, writer, step, name, items, overview):
        writer.write_texts(step, {name: items})


def toy_beads(*, period):
    x = np.where((np.arange(16) + np.arange(60)[:, None]) % period < period // 2, 1.0, -1.0).astype(np.float32)[..., None]
    examples = {"x": x, "label": (np.arange(60) % 2).astype(np.int32)}
    spec = {"x": Field(shape=(16, 1), dtype="float32", low=-1.0, high=1.0), "label": Field(shape=(), dtype="int32", low=0, high=1)}
    return DataSource(
        codec=Codec(medium=Beads(), spec=spec, conditions=(Labels(("even", "odd")),)),
        splits={"train": ArrayExamples({key: rows[:48] for key, rows in examples.items()}),
                "validation": ArrayExamples({key: rows[48:] for key, rows in examples.items()})},
        fingerprint=f"beads {period}",
    )  # fmt: skip


@pytest.fixture
def run(add_row, monkeypatch, tmp_path):
    monkeypatch.setitem(media.MEDIA, "beads", Beads)
    add_row("data", "toy_beads", toy_beads, dict(period=4))
    config = config_lib.base(
        data=dict(name="toy_beads"),
        model=dict(name="convnext", widths=(8,), depths=(1,), patch=2, condition_width=8),
        objective=dict(name="flow", nfe=4),
        batch_size=8,
        train=dict(steps=2, log_every=1, eval_every=2, preview_every=2, preview_num=3, checkpoint_every=0),
    )
    assert train.main(config, str(tmp_path / "run")) == 0
    return tmp_path / "run"


def test_a_medium_is_shown_saved_reported_and_compared_by_its_own_methods(run, tmp_path, caplog):
    assert (run / "data.strings").read_text().split("\n")[1] == "oo.." * 4 or set((run / "data.strings").read_text()) == {"o", ".", "\n"}
    assert len((run / "samples" / "000002.strings").read_text().split()) == 3
    codec = store.find(run).codec
    assert codec.medium == Beads()
    assert sampled(run, tmp_path / "out", num=4, labels=["odd"], batch_size=4) == 0
    first = (tmp_path / "out" / "00000.string").read_text().strip()
    assert len(first) == 16
    assert first in (tmp_path / "out" / "all.strings").read_text().split()
    assert json.loads((tmp_path / "out" / "samples.json").read_text())["samples"][0] == {"file": "00000.string", "label": 1, "name": "odd"}
    assert report.main([str(run)], out=None) == 0
    assert (run / "samples" / "000002.strings").read_text().split()[0] in (run / "report.html").read_text()
    images = dataclasses.replace(codec, medium=media.Image())
    assert images.differences(codec, rotary=False)[0] == "kind: 'beads' -> 'image'"
    with pytest.raises(UserError, match="scores compare pictures, and this model's samples are beads"):
        eval_fid.generated.check_draws_pictures(eval_fid.build.parts(store.find(run).config, codec), "flow")


def test_a_sampler_is_a_function_and_a_row(run, tmp_path, monkeypatch):
    def overshoot(field, x, t, s, path):
        return fixed_step.euler(field, x, t, s, path) * 2

    monkeypatch.setitem(table.SAMPLERS, "overshoot", Sampler(fixed_step.each(overshoot), lambda t, s, path: [t]))
    assert sampled(run, tmp_path / "out", num=2, batch_size=2, settings={"sampler": "overshoot"}) == 0
    assert json.loads((tmp_path / "out" / "samples.json").read_text())["sampler"] == "overshoot"
