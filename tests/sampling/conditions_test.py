"""A folder of captioned pictures, from training to pictures of what a prompt says."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.cli import main as cli
from tinygen.data.condition import Request
from tinygen.errors import UserError
from tinygen.evaluation.generated import conditions
from tinygen.sampling.conditions import asked

pytestmark = pytest.mark.slow

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220), "green": (30, 180, 30)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """48 pictures of one colour each, which their captions name."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(48):
        name = list(COLOURS)[number % 3]
        pixels = np.clip(rng.normal(COLOURS[name], 12, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
        (folder / f"{number:02d}.txt").write_text(f"a {name} square\n")
    return folder


@pytest.fixture(scope="module")
def run(photos, tiny, tmp_path_factory):
    """A run that has learnt the colours' names."""
    config = tiny(
        data=dict(name="folder", path=str(photos), size=8, min_side=8, validation=0.125),
        text=dict(tokens="bpe", length=6, vocabulary=300),
        batch_size=16,
        model=dict(patch=4, width=32, mlp_multiple=32, text_depth=1, text_width=16),
        objective=dict(nfe=8, guidance=2.0),
        optim=dict(lr=5e-3, decay_steps=160),
        train=dict(steps=160, eval_every=80, preview_every=160, preview_num=6, checkpoint_every=80, log_every=40),
    )
    workdir = tmp_path_factory.mktemp("prompts") / "run"
    assert train.main(config, str(workdir)) == 0
    return SimpleNamespace(workdir=workdir, config=config)


@pytest.fixture
def draw(run, tmp_path):
    """draw(prompts, ...): (samples.json, pictures) of a call of `tinygen sample`."""

    def call(*flags):
        assert cli.main(["sample", f"--ckpt={run.workdir}", f"--out={tmp_path / 'out'}", "--seed=3", *flags]) == 0
        told = json.loads((tmp_path / "out" / "samples.json").read_text())
        return told, np.stack([np.asarray(Image.open(tmp_path / "out" / row["file"])) for row in told["samples"]])

    return call


def nearest(picture):
    return min(COLOURS, key=lambda name: np.abs(picture.reshape(-1, 3).mean(0) - COLOURS[name]).sum())


def test_a_prompt_says_what_is_drawn(draw):
    told, pictures = draw("--num=24", *(f"--prompt=a {name} square" for name in COLOURS))
    assert [row["prompt"] for row in told["samples"]] == [f"a {name} square" for name in COLOURS] * 8
    right = [nearest(picture) in row["prompt"] for picture, row in zip(pictures, told["samples"], strict=True)]
    assert np.mean(right) >= 0.9  # a third by chance


def test_a_file_of_prompts_gives_a_picture_each(draw, tmp_path):
    (tmp_path / "prompts.txt").write_bytes("\ufeffa blue square\r\n\r\n  a red square \r\n".encode())  # as Windows writes it
    told, pictures = draw(f"--prompts={tmp_path / 'prompts.txt'}")
    assert [row["prompt"] for row in told["samples"]] == ["a blue square", "a red square"]
    assert len(pictures) == 2


def test_without_a_prompt_held_out_captions_are_drawn(draw, run):
    told, _ = draw("--num=2")
    held_out = store.find(run.workdir).codec.conditions[0].examples
    assert [row["prompt"] for row in told["samples"]] == list(held_out[:2])
    assert (run.workdir / "prompts.txt").read_text().splitlines() == [held_out[index % len(held_out)] for index in range(6)]


def test_guidance_leads_away_from_a_negative_prompt(draw):
    """From the prompt itself it leads nowhere: what is drawn is what no guidance draws."""
    away, same = draw("--num=4", "--prompt=a red square", "--negative=a blue square")[1], "--negative=a red square"
    alone = draw("--num=4", "--prompt=a red square", "--guidance=1", "--nfe=4")[1]
    assert np.mean(draw("--num=4", "--prompt=a red square", same)[1] == alone) >= 0.999
    assert np.mean(away == alone) < 0.5
    assert draw("--num=1", "--prompt=a red square", same)[0]["negative"] == "a red square"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--prompt="], "the prompt '' is empty: say what to draw"),
        (["--prompt=a red square and many more words than it reads"], "tokens, and this model reads 6: shorten it"),
        (["--prompts=nowhere.txt"], "--prompts=nowhere.txt cannot be read: No such file"),
        (["--prompt=a", "--prompts=nowhere.txt"], "not both"),
        (["--prompt=a", "--negative=b", "--guidance=1"], "--guidance=1 turns off"),
        (["--labels=red"], "without labels"),
    ],
    ids=str,
)
def test_a_prompt_that_cannot_be_drawn_is_refused(run, tmp_path, capsys, flags, said):
    assert cli.main(["sample", f"--ckpt={run.workdir}", f"--out={tmp_path / 'none'}", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) <= 2
    assert not (tmp_path / "none").exists()


def test_a_file_of_prompts_in_utf_16_is_refused_in_a_line(run, tmp_path, capsys):
    (tmp_path / "wide.txt").write_text("a red square", "utf-16")
    assert cli.main(["sample", f"--ckpt={run.workdir}", f"--prompts={tmp_path / 'wide.txt'}"]) == 2
    assert capsys.readouterr().err.strip().endswith("wide.txt is UTF-16, not UTF-8: save it as UTF-8")


def test_a_file_of_no_prompts_is_refused(run, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n \n")
    assert cli.main(["sample", f"--ckpt={run.workdir}", f"--prompts={tmp_path / 'empty.txt'}"]) == 2
    assert "has no prompts" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--prompt=a", "--negative=a"])
def test_a_model_of_labels_knows_no_prompts(finished, capsys, flag):
    assert cli.main(["sample", f"--ckpt={finished.workdir}", flag]) == 2
    assert f"{flag.partition('=')[0]}: this model was trained without captions" in capsys.readouterr().err


def test_a_run_goes_on_with_the_words_it_has_learnt(run, tmp_path, saved_arrays, metrics_of):
    """Stopped half way and begun again it ends as if nothing had been."""
    half = tmp_path / "half"
    train.main(config_lib.change(run.config, dict(train=dict(steps=80), optim=dict(decay_steps=160))), str(half))
    train.main(run.config, str(half))
    once, twice = (saved_arrays(workdir, 160) for workdir in (run.workdir, half))
    assert once.keys() == twice.keys()
    for name, array in once.items():
        np.testing.assert_array_equal(array, twice[name], err_msg=name)


def test_captions_that_have_changed_are_other_data(run, photos, tmp_path):
    workdir = shutil.copytree(run.workdir, tmp_path / "run")
    other = shutil.copytree(photos, tmp_path / "photos")
    (other / "07.txt").write_text("a yellow square")
    with pytest.raises(
        UserError, match=r"the data have changed since this run began \(data.path: .*; 1 file with another caption: '07.png'\)"
    ):
        train.main(config_lib.change(run.config, dict(data=dict(path=str(other)), train=dict(steps=200))), str(workdir))


def test_samples_are_scored_with_the_references_captions(run):
    saved = store.find(run.workdir)
    examples = build.data_source(saved.config, saved.codec).splits["train"]
    cond, rule = conditions(saved.codec, ["data"], 100, examples)
    assert rule == "as the reference's"
    assert cond["text"].shape == (100, 6)
    stored = np.concatenate([examples.take(np.arange(len(examples)))["text"]])
    assert {row.tobytes() for row in cond["text"]} == {row.tobytes() for row in stored}
    assert conditions(saved.codec, ["all"], 4, None)[1] == "the run's 3 example prompts in turn"


def test_after_a_torn_checkpoint_a_later_stage_still_reads_as_the_first_did(run, photos, tmp_path):
    """Trained on its own captions the tokenizer would be another, and the data seem to have changed."""
    other = shutil.copytree(photos, tmp_path / "photos")
    for path in other.glob("*.txt"):
        path.write_text(path.read_text().replace("square", "picture"))
    few = dict(steps=4, eval_every=0, preview_every=0, checkpoint_every=2)
    config = config_lib.change(run.config, dict(data=dict(path=str(other)), init=dict(ckpt=str(run.workdir)), train=few))
    train.main(config, str(tmp_path / "later"))
    (tmp_path / "later" / "checkpoints" / "4" / "codec" / "metadata").write_text("torn")
    assert train.main(config_lib.change(config, dict(train=dict(steps=5))), str(tmp_path / "later")) == 0
    assert store.find(tmp_path / "later").codec.conditions[0].merges == store.find(run.workdir).codec.conditions[0].merges


def test_a_negative_prompt_acts_though_there_is_no_prompt(run, tmp_path):
    """Examples that are all too long: what is drawn without a caption is led away all the same."""
    codec = store.find(run.workdir).codec
    bare = dataclasses.replace(codec, conditions=(dataclasses.replace(codec.conditions[0], examples=()),))
    found = asked(bare, Request(negative="a red square"), 2, guidance=2.0)
    assert found.cond.keys() == found.negative.keys()
    assert not found.cond["text"].any()
    assert found.negative["text"].any()


def test_data_without_captions_are_refused_before_a_run_begins(tiny, tmp_path):
    with pytest.raises(UserError, match="no training image has a caption"):
        train.main(tiny(data=dict(label=""), text=dict(tokens="bytes")), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_later_stage_reads_words_as_the_first_did(run, photos, tmp_path):
    """It is begun on other captions, whose own merges would be others."""
    other = shutil.copytree(photos, tmp_path / "photos")
    for path in other.glob("*.txt"):
        path.write_text(path.read_text().replace("square", "picture"))
    changes = dict(data=dict(path=str(other)), init=dict(ckpt=str(run.workdir)), train=dict(steps=2, eval_every=0, preview_every=0))
    train.main(config_lib.change(run.config, changes), str(tmp_path / "later"))
    first, later = store.find(run.workdir).codec.conditions[0], store.find(tmp_path / "later").codec.conditions[0]
    assert later.merges == first.merges
    assert later.merges != build.data_source(config_lib.change(run.config, dict(data=dict(path=str(other))))).codec.conditions[0].merges
