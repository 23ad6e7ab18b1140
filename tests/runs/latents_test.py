"""Runs on latents: what they show, draw and score is decoded, by the autoencoder that made the latents or not at all."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import patch_autoencoder
import pytest
from PIL import Image
from sampling import sampled

from tinygen import build, check, eval_fid, media, train
from tinygen import config as config_lib
from tinygen.checkpoints import weights
from tinygen.checkpoints.store import find
from tinygen.cli import main as cli
from tinygen.data.codec import Codec, Field
from tinygen.data.condition import Request
from tinygen.errors import UserError
from tinygen.evaluation.features import extraction, load
from tinygen.evaluation.images import of_split
from tinygen.media import image
from tinygen.pretrained import autoencoder, latents
from tinygen.pretrained.latents import originals
from tinygen.sampling import draw
from tinygen.sampling.settings import configured


@pytest.fixture(scope="module", autouse=True)
def stand_in():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoencoder, "load", patch_autoencoder.load)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return patch_autoencoder.make(tmp_path_factory.mktemp("latents"))


@pytest.fixture
def small(made, tiny):
    """small(**changes): a tiny run on the latents of 8x8 digits."""

    def config(**changes):
        few = dict(steps=4, log_every=1, eval_every=4, preview_every=4, preview_num=10, checkpoint_every=2)
        data = dict(name="latents", path=str(made.folder))
        return config_lib.change(
            tiny(data=data, model=dict(patch=2, time_scale=1.0), objective=dict(name="edm"), batch_size=16, train=few), changes
        )

    return config


@pytest.fixture(scope="module")
def finished_latents(made, tiny, tmp_path_factory):
    """The workdir of such a run. Shared: only to be read."""
    workdir, data = tmp_path_factory.mktemp("run") / "run", dict(name="latents", path=str(made.folder))
    few = dict(steps=4, log_every=1, eval_every=4, preview_every=4, preview_num=10, checkpoint_every=2)
    config = tiny(data=data, model=dict(patch=2, time_scale=1.0), objective=dict(name="edm"), batch_size=16, train=few)
    assert train.main(config, str(workdir)) == 0
    return workdir


def pixels_of(path):
    return np.asarray(Image.open(path).convert("L"))[..., None]


@pytest.mark.slow
def test_the_data_are_shown_as_the_images_that_they_were(finished_latents, made):
    images, train_split = made.images, made.images.splits["train"]
    indices = np.linspace(0, len(train_split) - 1, 10).astype(int)
    expected = image.grid(images.codec.medium.decode(train_split.take(indices)["x"]))
    shown = pixels_of(finished_latents / "data.png")
    assert shown.shape == expected.shape
    assert np.abs(shown.astype(int) - expected).max() <= 1  # float16 moves a value by less than a level


@pytest.mark.slow
def test_previews_are_decoded_images(finished_latents):
    names = sorted(path.name for path in (finished_latents / "samples").glob("*.png"))
    assert names == ["000001.png", "000002.png", "000004.png"]
    expected = image.grid(np.zeros((10, 8, 8, 1), np.uint8), image.columns_for(10)).shape
    assert pixels_of(finished_latents / "samples" / "000004.png").shape == expected


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(small, finished_latents, tmp_path, metrics_of, saved_arrays):
    for steps in (2, 4):
        assert train.main(small(train=dict(steps=steps), optim=dict(decay_steps=40)), str(tmp_path / "run")) == 0
    whole, resumed = saved_arrays(finished_latents, 4), saved_arrays(tmp_path / "run", 4)
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    assert metrics_of(tmp_path / "run")[-1]["loss"] == metrics_of(finished_latents)[-1]["loss"]


@pytest.mark.slow
def test_samples_are_pictures_decoded_from_the_latents_that_the_model_draws(finished_latents, tmp_path):
    def drawn(out, **more):
        sampled(finished_latents, out, num=6, labels=["3"], batch_size=4, **more)
        return np.stack([pixels_of(path) for path in sorted(out.glob("0*.png"))])

    saved = find(finished_latents)
    config = configured(saved.config, {}, saved.codec)
    parts = build.parts(config, saved.codec)
    cond = saved.codec.encode(6, Request(labels=["3"]))
    x, _ = draw.counted(weights.load(saved, parts, ema=True), parts, cond, num=6, seed=0, batch_size=4)
    assert x.shape == (6, 4, 4, 4)
    here = drawn(tmp_path / "here")
    np.testing.assert_array_equal(here, latents.items(saved.codec, x))
    moved = shutil.copy(saved.codec.domain.source, tmp_path / "moved")
    np.testing.assert_array_equal(drawn(tmp_path / "there", autoencoder=str(moved)), here)


@pytest.mark.slow
def test_latents_are_drawn_in_one_step_of_an_average_velocity(small, tmp_path):
    config = small(objective=dict(name="improved_meanflow"), model=dict(time_scale=16.0), train=dict(steps=2, eval_every=2))
    assert train.main(config, str(tmp_path / "run")) == 0
    assert cli.main(["sample", f"--ckpt={tmp_path / 'run'}", "--num=4", "--nfe=1", "--guidance=2", f"--out={tmp_path / 'out'}"]) == 0
    assert json.loads((tmp_path / "out" / "samples.json").read_text())["nfe"] == 1
    assert {pixels_of(path).shape for path in (tmp_path / "out").glob("0*.png")} == {(8, 8, 1)}


@pytest.mark.slow
def test_another_autoencoder_is_refused_with_both_names_before_any_work(small, finished_latents, tmp_path, capsys):
    (tmp_path / "other").write_text("another autoencoder")
    right, wrong = (
        autoencoder.load(str(path), "").sha256[:16] for path in (find(finished_latents).codec.domain.source, tmp_path / "other")
    )
    told = rf"other is not the autoencoder that made these latents: other, sha256 {wrong}, in place of patches, {right}"
    with pytest.raises(UserError, match=told):
        train.main(small(data=dict(autoencoder=str(tmp_path / "other"))), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    for command in ("sample", "eval-fid"):
        assert cli.main([command, f"--ckpt={finished_latents}", f"--autoencoder={tmp_path / 'other'}"]) == 2
        said = capsys.readouterr().err
        assert wrong in said
        assert right in said
        assert cli.main([command, f"--ckpt={finished_latents}", f"--autoencoder={tmp_path / 'gone'}"]) == 2
        assert "gone: there is no such file" in capsys.readouterr().err


def test_pixels_need_no_autoencoder(finished, tmp_path, capsys):
    assert cli.main(["sample", f"--ckpt={finished.workdir}", f"--autoencoder={tmp_path}", f"--out={tmp_path / 'out'}"]) == 2
    assert "not trained on latents" in capsys.readouterr().err


@pytest.fixture
def score(finished_latents, classifier, tmp_path, monkeypatch):
    """score(**changes): the line of a call of eval-fid on a copy of the run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(extraction, "ON_CPU", 1)
    workdir = shutil.copytree(finished_latents, tmp_path / "run")
    defaults = dict(
        ckpt=str(workdir), samples=None, ref=None, num=24, scores=["fd"], features=str(classifier), preset=None, weights=None,
        step=None, ema=True, labels=[], settings={}, points={}, seed=0, batch_size=8, force=False,
    )  # fmt: skip

    def call(**changes):
        assert eval_fid.main(**{**defaults, **changes}) == 0
        return json.loads((workdir / "eval.jsonl").read_text().splitlines()[-1])

    return call


@pytest.mark.slow
def test_scores_compare_decoded_samples_with_the_original_images(score, made):
    by_default, named = score(), score(ref="digits8:train", labels=["data"])
    assert by_default["protocol"]["reference"] == f"{made.images.fingerprint}:train"
    assert by_default["protocol"]["reference_num"] == len(made.images.splits["train"])
    assert by_default["fd_toy"] == named["fd_toy"]
    assert by_default["protocol"]["labels"] == "as the reference's"


@pytest.mark.slow
def test_originals_that_are_gone_or_have_changed_ask_for_another_reference(finished_latents):
    about = find(finished_latents).codec.domain
    for changes, told in (
        (dict(data=dict(name="folder", path="/nowhere")), "/nowhere"),
        (dict(images="0" * 16), "they have changed since"),
        (dict(data=dict(name="digits9")), "unknown data set"),
    ):
        with pytest.raises(UserError, match=rf"cannot be read: (.|\n)*{told}(.|\n)*give --ref"):
            originals(dataclasses.replace(about, **changes), "give --ref")


@pytest.mark.slow
def test_scores_while_the_run_learns_compare_with_the_originals_too(small, classifier, tmp_path, metrics_of, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(extraction, "ON_CPU", 1)
    scores = dict(every=2, features=str(classifier), num=24, split="validation")
    config = small(eval=scores, train=dict(steps=2, eval_every=0, preview_every=0))
    assert check.main(config, str(tmp_path / "run")) == 0
    assert train.main(config, str(tmp_path / "run")) == 0
    assert metrics_of(tmp_path / "run")[-1]["eval_ema_fd_toy"] > 0


@pytest.mark.slow
def test_latents_are_no_pictures_to_compare_with_and_no_network_for_features(small, finished_latents, monkeypatch):
    with pytest.raises(UserError, match="these are latent data"):
        of_split(build.data_source(small()), "train", "--ref")
    saved = find(finished_latents)
    classifying = dataclasses.replace(saved, config=config_lib.change(saved.config, dict(objective=dict(name="classification"))))
    monkeypatch.setattr(load.store, "find", lambda *_, **__: classifying)
    with pytest.raises(UserError, match="on latent data"):
        load.of_run(str(finished_latents))


def test_decoding_works_inside_a_mesh_of_several_devices(small):
    config = small(mesh=dict(data=4, fsdp=2))
    source = build.data_source(config)
    x = source.splits["train"].take(np.arange(5))["x"]
    alone = latents.to_medium(source.codec.domain, x)
    with jax.set_mesh(build.parts(config, source.codec).layout.mesh):
        np.testing.assert_array_equal(latents.to_medium(source.codec.domain, x), alone)


def test_a_codec_keeps_its_latents_provenance(small):
    codec = build.data_source(small()).codec
    assert Codec.from_json(json.loads(json.dumps(codec.to_json()))) == codec


def test_a_codec_of_before_there_were_latents_is_one_of_pixels():
    codec = Codec(medium=media.Image(), spec={"x": Field(shape=(4, 4, 1), dtype="float32", low=-1.0, high=1.0)})
    tree = json.loads(json.dumps(codec.to_json()))
    del tree["latents"]
    assert Codec.from_json(tree) == codec
    np.testing.assert_array_equal(latents.items(codec, np.zeros((1, 4, 4, 1))), codec.medium.decode(np.zeros((1, 4, 4, 1))))


SPOILT = {
    "another shape": (dict(factor=4), "does not have the shape of these latents"),
    "no hash": (dict(sha256="x"), "which autoencoder"),
    "a number for a name": (dict(name=3), "which autoencoder"),
    "a factor of 10**9": (dict(factor=10**9), "four whole numbers"),
    "a word for a shape": (dict(image="881"), "four whole numbers"),
    "sides that it does not divide": (dict(factor=3), "no multiple"),
    "a scale that is no number": (dict(scale=float("nan")), "no finite numbers"),
    "a scale of 0": (dict(scale=0), "not positive"),
    "10**6 channels": (dict(shift=[0.0] * 10**6), "have no channels"),
    "a list for a recipe": (dict(data=[]), "which images"),
    "a key that none has": (dict(decode="os.system"), "not a codec of this version"),
}


@pytest.mark.parametrize(("changes", "told"), SPOILT.values(), ids=SPOILT)
def test_a_provenance_that_is_absurd_is_refused(small, changes, told):
    tree = build.data_source(small()).codec.to_json()
    with pytest.raises(UserError, match=told):
        Codec.from_json({**tree, "latents": {**tree["latents"], **changes}})
