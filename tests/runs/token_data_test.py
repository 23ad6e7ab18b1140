"""Tokens of images: what a tokenizer makes of a data set, runs on it, and what does not fit is refused."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import patch_autoencoder
import prepare_latents
import pytest
from PIL import Image

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.cli import main as cli
from tinygen.data import latents as sources
from tinygen.data.codec import Codec
from tinygen.data.domain import Tokens
from tinygen.data.source import check_batch
from tinygen.errors import UserError
from tinygen.pretrained import autoencoder, latents

CODES = 9


def encode(variables, x):
    """The mean brightness of 2x2 pixels, on nine levels."""
    B, H, W, _ = x.shape
    means = x.reshape(B, H // 2, 2, W // 2, 2).mean((2, 4))
    return jnp.round((means + 1) * (CODES - 1) / 2).astype(jnp.int32)


def decode(variables, tokens):
    return jnp.repeat(jnp.repeat(tokens * 2.0 / (CODES - 1) - 1.0, 2, 1), 2, 2)[..., None]


def load(source, option):
    return dataclasses.replace(patch_autoencoder.load(source, option), channels=1, codes=CODES, encode=encode, decode=decode)


@pytest.fixture(scope="module", autouse=True)
def stand_in():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoencoder, "load", load)
        yield


@pytest.fixture(scope="module")
def made(stand_in, tmp_path_factory):
    """(folder of tokens of 8x8 digits, folder of the recipe and the tokenizer). Shared: only to be read."""
    place = tmp_path_factory.mktemp("tokens")
    (place / "recipe.py").write_text(patch_autoencoder.RECIPE)
    (place / "patches").write_text("a tokenizer")
    assert prepare_latents.main([*patch_autoencoder.words(place), f"--out={place / 'tokens'}"]) == 0
    return place / "tokens", place


def source_of(folder, **changes):
    return build.data_source(config_lib.base(data=dict(name="latents", path=str(folder), **changes)))


@pytest.fixture(scope="module")
def finished_tokens(made, tiny, tmp_path_factory):
    """The workdir of a short run. Shared: only to be read."""
    workdir = tmp_path_factory.mktemp("run") / "run"
    model = dict(name="hourglass", width=16, depth=(0, 1, 0), shorten=2, heads=2, mlp_multiple=8)
    few = dict(steps=2, log_every=1, eval_every=2, preview_every=2, preview_num=4, checkpoint_every=2)
    data = dict(name="latents", path=str(made[0]))
    config = tiny(data=data, model=model, objective=dict(name="discrete", nfe=4), batch_size=16, train=few)
    assert train.main(config, str(workdir)) == 0
    return workdir


def test_every_image_becomes_its_tokens_with_its_label_in_the_same_order(made):
    images, tokens = build.data_source(config_lib.base(data=dict(name="digits8"))), source_of(made[0])
    indices = np.array([3, 0, 170])
    for split in ("train", "validation"):
        assert len(tokens.splits[split]) == len(images.splits[split])
        ours, theirs = tokens.splits[split].take(indices), images.splits[split].take(indices)
        np.testing.assert_array_equal(ours["tokens"], encode(None, theirs["x"]))
        np.testing.assert_array_equal(ours["label"], theirs["label"])
    assert tokens.draw is None  # nothing is random in tokens
    assert {"places": (4, 4), "vocabulary": CODES, "classes": 10}.items() <= tokens.codec.facts().items()
    check_batch(tokens.splits["train"].take(np.arange(64)), tokens.codec)


def test_a_codec_keeps_its_tokens_provenance(made):
    codec = source_of(made[0]).codec
    assert Codec.from_json(json.loads(json.dumps(codec.to_json()))) == codec
    other = dataclasses.replace(codec.domain, sha256="f" * 64)
    assert other.differences(codec.domain)[0].startswith("autoencoder: patches")
    tree = codec.to_json()
    tree["latents"]["codes"] = 5
    with pytest.raises(UserError, match="codes from 0 to 4"):
        Codec.from_json(tree)


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda x: x + CODES, "outside"), (lambda x: x * 0, "nearly all tokens are the same"), (lambda x: x - 1, "outside")],
)
def test_codes_outside_the_vocabulary_and_of_images_in_another_scale_are_refused(made, change, said):
    source = source_of(made[0])
    batch = source.splits["train"].take(np.arange(64))
    with pytest.raises(UserError, match=said):
        check_batch({**batch, "tokens": change(batch["tokens"])}, source.codec)


def test_samples_are_decoded_and_what_is_given_stays(finished_tokens, tmp_path):
    pixels = np.where(np.arange(8) < 4, 255, 0)[:, None].repeat(8, 1)
    alpha = np.where(np.arange(8) < 5, 255, 0)[:, None].repeat(8, 1)  # the fifth row belongs to tokens that are not wholly known
    Image.fromarray(np.stack([pixels] * 3 + [alpha], -1).astype(np.uint8)).save(tmp_path / "given.png")
    out = tmp_path / "out"
    arguments = ["sample", f"--ckpt={finished_tokens}", "--num=3", f"--given={tmp_path / 'given.png'}", "--history", f"--out={out}"]
    assert cli.main(arguments) == 0
    for index in range(3):
        with Image.open(out / f"0000{index}.png") as picture:
            drawn = np.asarray(picture)
        assert drawn.shape == (8, 8)
        assert (drawn[:4] == 255).all()
    with Image.open(out / "history.gif") as animation:
        first = np.asarray(animation.convert("L")).astype(int)
    assert (np.abs(first - 128) < 3).mean() > 0.4  # masks are grey, like the frame


def test_masks_are_grey_and_tokens_decode_a_few_at_a_time(made):
    domain = source_of(made[0]).codec.domain
    x = np.array([[[CODES, 8, 0, 4]] * 4] * 3, np.int32)
    images = latents.to_medium(domain, x)
    assert images.shape == (3, 8, 8, 1)
    assert images[0, 0, :, 0].tolist() == [0, 0, 1, 1, -1, -1, 0, 0]


def test_another_tokenizer_is_refused(finished_tokens, tmp_path, capsys):
    (tmp_path / "other").write_text("another tokenizer")
    assert cli.main(["sample", f"--ckpt={finished_tokens}", f"--autoencoder={tmp_path / 'other'}"]) == 2
    assert "is not the autoencoder that made these latents" in capsys.readouterr().err


def test_scores_compare_with_the_images_behind_the_tokens(finished_tokens):
    domain = store.find(str(finished_tokens)).codec.domain
    assert isinstance(domain, Tokens)
    assert latents.originals(domain, "").codec.comparable


@pytest.mark.parametrize(
    ("tokenizer", "more", "said"),
    [
        (dict(channels=2), [], "gives 2 tokens per place, and models take one: train one with stages=1"),
        (dict(), ["--like={folder}"], "tokens have no scale; omit --like"),
        (dict(factor=3), [], "the image size 8x8 is not a multiple of 3"),
    ],
)
def test_what_cannot_be_encoded_is_refused_before(made, tmp_path, monkeypatch, capsys, tokenizer, more, said):
    monkeypatch.setattr(autoencoder, "load", lambda source, option: dataclasses.replace(load(source, option), **tokenizer))
    more = [each.format(folder=made[0]) for each in more]
    assert prepare_latents.main([*patch_autoencoder.words(made[1]), *more, f"--out={tmp_path / 'out'}"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_records_of_another_length_are_refused(made, tmp_path):
    prepared = sources.Prepared.read(made[0])
    spoilt = dataclasses.replace(prepared, latents=dataclasses.replace(prepared.latents, image=(16, 16, 1)))
    for split in sources.SPLITS:
        sources.file_of(tmp_path, split).write_bytes(sources.file_of(made[0], split).read_bytes())
    spoilt.write(tmp_path)
    with pytest.raises(UserError, match="records are too short"):
        source_of(tmp_path).splits["train"].take(np.arange(2))
