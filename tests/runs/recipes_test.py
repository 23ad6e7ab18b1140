import re
from pathlib import Path

import prepare_latents
import pytest
from benchmarks import gpt_step
from flax import nnx

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.train_step import split

RECIPES = sorted((Path(__file__).parents[2] / "configs").glob("*.py"))
STATED = re.compile(r"([\d.,]+)\s*([kMB]?) parameters")


@pytest.fixture(autouse=True)
def own_data(tmp_path_factory, monkeypatch):
    """What recipes prepare for TFDS, and what they find in this folder, is prepared once for these tests, and nowhere else."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path_factory.getbasetemp() / "tfds"))
    (tmp_path_factory.getbasetemp() / "recipes").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path_factory.getbasetemp() / "recipes")


def smoke(recipe):
    """A recipe's smoke variant, its latents prepared as its docstring says."""
    config = config_lib.load(f"{recipe}:smoke")
    if config.data.name == "latents" and not Path(config.data.path).exists():
        images = recipe.with_name("autoencoder_avatars.py")
        few = dict(train=dict(steps=1, eval_every=0, preview_every=0))
        assert train.main(config_lib.change(config_lib.load(f"{images}:smoke"), few), "autoencoder") == 0
        assert prepare_latents.main([f"--config={images}:smoke", "--autoencoder=autoencoder", f"--out={config.data.path}"]) == 0
    return config


def parameters(recipe, config):
    """The number of parameters of a recipe's model, none of which is made, on data like those of its smoke variant; of text on tokens
    like its own, of whose number the size depends.
    """
    if "tokenizer" in config.data:
        codec = gpt_step.codec_of(50_257 if config.data.tokenizer == "gpt2" else config.data.vocabulary, config.data.length)
    else:
        codec = build.data_source(smoke(recipe)).codec
    parts = build.parts(config, codec)
    return store.count(nnx.eval_shape(lambda: split(parts.create(nnx.Rngs(0)))[1]))


def stated(text):
    """[1.2e6] for a text that says "1.2M parameters"."""
    return [float(number.replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[unit] for number, unit in STATED.findall(text)]


def test_there_are_recipes():
    assert {"dit_pixel_faces", "dit_digits", "dit_digits8", "dit_faces_80m", "fsdp_sine"} <= {recipe.stem for recipe in RECIPES}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_smoke_run_trains_evaluates_previews_and_saves(recipe, tmp_path, metrics_of):
    config = config_lib.change(smoke(recipe), dict(train=dict(steps=2, log_every=1)))
    assert train.main(config, str(tmp_path / "run")) == 0
    first, last = metrics_of(tmp_path / "run")
    assert (first["step"], last["step"]) == (1, 2)
    minimised = "raw_loss" if "raw_loss" in first else "loss"  # an adaptive weight makes the loss itself 1, or nearly, every step
    assert first[minimised] != last[minimised]
    assert {"eval_loss", "eval_ema_loss"} <= last.keys()
    kind = "txt" if "tokenizer" in config.data else "png"
    assert sorted({path.name[:6] for path in (tmp_path / "run" / "samples").glob(f"*.{kind}")}) == ["000001", "000002"]
    assert store.find(tmp_path / "run").step == 2


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_fits_together_and_its_model_has_the_size_it_states(recipe):
    config = config_lib.load(str(recipe))
    config_lib.check(config)
    size = parameters(recipe, config)
    assert size > 10 * parameters(recipe, config_lib.load(f"{recipe}:smoke"))  # a smoke run is a small matter
    for claimed in stated(recipe.read_text()):
        assert size == pytest.approx(claimed, rel=0.02)  # the project's rule for every size that it names


@pytest.mark.parametrize(
    ("variant", "data"),
    [("smoke+folder", "folder"), ("folder+smoke", "folder"), ("celeb_a+deep+smoke", "celeb_a"), ("deep+smoke", "avatars")],
)
def test_variants_of_the_faces_add_up_in_any_order(variant, data):
    recipe = next(path for path in RECIPES if path.stem == "dit_faces_80m")
    config = config_lib.load(f"{recipe}:{variant}")
    assert config.data.name == data
    assert config.train.steps == 20


@pytest.mark.slow
def test_the_wide_and_the_deep_faces_are_80m_and_equal_within_two_percent():
    recipe = next(path for path in RECIPES if path.stem == "dit_faces_80m")
    wide, deep = (parameters(recipe, config_lib.load(f"{recipe}:{variant}")) for variant in ("wide", "deep"))
    assert wide == pytest.approx(80e6, rel=0.02)
    assert deep == pytest.approx(80e6, rel=0.02)
    assert wide == pytest.approx(deep, rel=0.02)


@pytest.mark.parametrize(
    ("text", "sizes"), [("A model of 1.2M parameters.", [1.2e6]), ("80k parameters, 1,234 parameters", [8e4, 1234]), ("no size", [])]
)
def test_a_stated_size_is_understood(text, sizes):
    assert stated(text) == pytest.approx(sizes)


@pytest.mark.slow
def test_microdit_goes_on_from_masked_patches_to_whole_images_and_tells_of_its_experts(tmp_path, metrics_of):
    recipe = next(path for path in RECIPES if path.stem == "microdit_digits")
    few = dict(train=dict(steps=2, log_every=1, preview_every=0))
    assert train.main(config_lib.change(config_lib.load(f"{recipe}:smoke"), few), str(tmp_path / "masked")) == 0
    masked = metrics_of(tmp_path / "masked")
    assert all(0 < masked[-1][name] <= 1 for name in ("routing_entropy", "routing_served", "routing_least"))
    whole = config_lib.change(config_lib.load(f"{recipe}:unmasked+smoke"), {**few, "init": dict(ckpt=str(tmp_path / "masked"))})
    assert train.main(whole, str(tmp_path / "whole")) == 0
    assert metrics_of(tmp_path / "whole")[-1]["step"] == 2
    edm = config_lib.change(config_lib.load(f"{recipe}:edm+smoke"), few)
    assert train.main(edm, str(tmp_path / "edm")) == 0
    assert {"loss", "raw_loss", "raw_loss_t3", "eval_ema_loss"} <= metrics_of(tmp_path / "edm")[-1].keys()
