"""Runs on tokens: what they show, infill, animate and score."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.cli import main as cli
from tinygen.data.codec import Codec
from tinygen.data.domain import Levels
from tinygen.data.source import check_batch
from tinygen.errors import UserError
from tinygen.evaluation.images import of_split
from tinygen.pretrained import latents

MODEL = dict(name="hourglass", width=16, depth=(0, 1, 0), shorten=2, heads=2, mlp_multiple=8)
FEW = dict(steps=2, log_every=1, eval_every=2, preview_every=2, preview_num=4, checkpoint_every=2)


@pytest.fixture(scope="module")
def digits(tiny, tmp_path_factory):
    """The workdir of a short run on digits as tokens. Shared: only to be read."""
    workdir = tmp_path_factory.mktemp("digits") / "run"
    config = tiny(data=dict(name="digits8", tokens=True), model=MODEL, objective=dict(name="discrete", nfe=6), batch_size=16, train=FEW)
    assert train.main(config, str(workdir)) == 0
    return workdir


@pytest.fixture(scope="module")
def plays(tiny, tmp_path_factory):
    """The workdir of a short run on text. Shared: only to be read."""
    workdir = tmp_path_factory.mktemp("plays") / "run"
    data, model = dict(name="shakespeare", tokenizer="bytes", length=32), MODEL | dict(shorten=1)
    assert train.main(tiny(data=data, model=model, objective=dict(name="discrete", nfe=4), batch_size=16, train=FEW), str(workdir)) == 0
    return workdir


@pytest.fixture
def half(tmp_path):
    """A picture whose lower half is transparent, and its grey levels."""
    grey = (np.arange(64, dtype=np.uint8).reshape(8, 8) * 4) // 15 * 15
    alpha = np.where(np.arange(8)[:, None] < 4, 255, 0).repeat(8, 1).astype(np.uint8)
    Image.fromarray(np.stack([grey, grey, grey, alpha], -1)).save(tmp_path / "half.png")
    return tmp_path / "half.png", grey


def command(capsys, *arguments):
    status = cli.main(list(map(str, arguments)))
    return status, capsys.readouterr()


def test_levels_become_pixels_and_pixels_the_nearest_levels():
    domain = Levels(17)
    tokens = np.arange(17).reshape(1, 1, 17)
    pixels = domain.to_medium(tokens)
    assert (pixels.shape, pixels.min(), pixels.max()) == ((1, 1, 17, 1), -1.0, 1.0)
    np.testing.assert_array_equal(domain.of_medium(pixels[0] + 0.06, np.ones((1, 17), bool)), tokens[0])
    assert domain.of_medium(pixels[0], np.zeros((1, 17), bool)).max() == -1
    assert domain.to_medium(np.full((1, 1, 1), 17)).item() == 0.0  # the mask is grey


def test_a_codec_of_levels_survives_json_and_refuses_weights_of_other_levels(tiny):
    codec = build.data_source(tiny(data=dict(name="digits8", tokens=True))).codec
    again = Codec.from_json(json.loads(json.dumps(codec.to_json())))
    assert again == codec
    assert codec.facts()["places"] == (8, 8)
    assert Levels(16).differences(Levels(17)) == ["levels of brightness: 17 -> 16"]
    with pytest.raises(UserError, match="levels of brightness"):
        Levels(1)
    tree = codec.to_json() | {"levels": 5}
    with pytest.raises(UserError, match="from 0 to 4"):
        Codec.from_json(tree)


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda x: x + 17, "outside"), (lambda x: x // 8, "is their scale wrong"), (lambda x: x * 0, "is their scale wrong")],
)
def test_the_first_batch_catches_tokens_of_another_scale(tiny, change, said):
    source = build.data_source(tiny(data=dict(name="digits8", tokens=True)))
    batch = source.splits["train"].take(np.arange(32))
    check_batch(batch, source.codec)
    with pytest.raises(UserError, match=said):
        check_batch({**batch, "tokens": change(batch["tokens"])}, source.codec)


def test_a_run_shows_its_data_its_samples_and_what_it_infills(digits):
    names = {path.name for path in (digits / "samples").iterdir()}
    assert {"000002.png", "000002-infilled.png"} <= names
    with Image.open(digits / "data.png") as shown:
        assert len(set(np.asarray(shown).ravel())) > 10


def test_given_pixels_stay_and_the_animation_ends_with_the_samples(digits, half, tmp_path, capsys):
    path, grey = half
    out = tmp_path / "out"
    status, _ = command(capsys, "sample", f"--ckpt={digits}", "--num=4", f"--given={path}", "--history", f"--out={out}")
    assert status == 0
    for index in range(4):
        drawn = np.asarray(Image.open(out / f"0000{index}.png")).astype(int)
        assert np.abs(drawn[:4] - grey[:4]).max() <= 8  # half a level of 16
    about = json.loads((out / "samples.json").read_text())
    assert about["given"] == str(path)
    with Image.open(out / "history.gif") as animation:
        assert animation.n_frames == about["nfe"] + 1
        animation.seek(animation.n_frames - 1)
        last = np.asarray(animation.convert("L")).astype(int)
    assert np.abs(last - np.asarray(Image.open(out / "grid.png")).astype(int)).max() <= 8  # a GIF has a palette


def test_given_text_stays_where_it_is(plays, tmp_path, capsys):
    status, told = command(capsys, "sample", f"--ckpt={plays}", "--num=2", "--given=TO {4} OR {4}BE", f"--out={tmp_path / 'out'}")
    assert status == 0
    for index in range(2):
        text = (tmp_path / "out" / f"0000{index}.txt").read_text()
        assert text.startswith("TO ")
        assert " OR " in text
        assert "BE" in text
    assert told.out.count("TO ") == 2
    tokens = latents.given(store.find(str(plays), None).codec, "ab{3}c")
    assert tokens[:6].tolist() == [97, 98, -1, -1, -1, 99]
    assert (tokens[6:] == -1).all()


def test_a_prompt_begins_the_text(plays, tmp_path, capsys):
    status, _ = command(capsys, "sample", f"--ckpt={plays}", "--prompt=ROMEO:", f"--out={tmp_path / 'out'}")
    assert status == 0
    assert (tmp_path / "out" / "00000.txt").read_text().startswith("ROMEO:")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--given={tmp}/none.png"], "that can be read: No such file or directory"),
        (["--given={tmp}/large.png"], "has 9x8 pixels, and this model draws 8x8"),
        (["--given={tmp}/whole.png"], "has no transparent pixels"),
        (["--proportion=0.3"], "no effect here: it needs config.objective.process=uniform"),
        (["--remask=0.1"], "--remask=0.1 has no effect here: it needs --sampler=ancestral"),
        (["--sampler=unrolled"], "sampler unrolled is not for process 'mask'"),
        (["--stop=x"], "--stop=x: this model writes no text"),
    ],
)
def test_what_does_not_fit_digits_is_refused(digits, tmp_path, capsys, arguments, said):
    Image.new("RGBA", (9, 8)).save(tmp_path / "large.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "whole.png")
    status, told = command(capsys, "sample", f"--ckpt={digits}", *(each.format(tmp=tmp_path) for each in arguments))
    assert status == 2
    assert said in told.err
    assert len(told.err.strip().splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--given=" + "long " * 20], "this model writes 32"),
        (["--given=" + "x" * 32], "leaves no gap"),
        (["--given=a{2}b", "--prompt=c"], "not both"),
        (["--history"], "--history draws pictures"),
        (["--stop=x"], "objective 'discrete' writes all of a text at once"),
        (["--prompt=" + "long " * 20], "a prompt of 100 tokens leaves none to write: this model writes 32"),
    ],
)
def test_what_does_not_fit_text_is_refused(plays, capsys, arguments, said):
    status, told = command(capsys, "sample", f"--ckpt={plays}", *arguments)
    assert status == 2
    assert said in told.err


def test_models_of_pixels_do_not_infill(finished, capsys, half):
    status, told = command(capsys, "sample", f"--ckpt={finished.workdir}", f"--given={half[0]}")
    assert status == 2
    assert "--given needs a model of tokens, trained with objective 'discrete', and this one is of 'flow'" in told.err


def test_digits_are_scored_as_the_pictures_that_they_are(tiny):
    tokens, pixels = (build.data_source(tiny(data=dict(name="digits8", tokens=tokens))) for tokens in (True, False))
    ours, theirs = (of_split(source, "validation", "it").reads(0) for source in (tokens, pixels))
    for _ in range(3):
        np.testing.assert_array_equal(next(ours)(), next(theirs)())


@pytest.mark.parametrize(
    "model", [dict(name="microdit", patch=2, width=8, depth=1, heads=2), dict(name="convnext", widths=(8,), depths=(1,))]
)
def test_models_of_pixels_denoise_tokens_too(tiny, model):
    config = tiny(data=dict(name="digits8", tokens=True), model=model, objective=dict(name="discrete", nfe=3))
    source = build.data_source(config)
    parts = build.parts(config, source.codec)
    network = parts.create(nnx.Rngs(0))
    batch = {name: rows[:4] for name, rows in source.splits["train"].take(np.arange(4)).items()}
    loss, _ = jax.jit(lambda key: parts.objective.loss(network, batch, key, train=True))(jax.random.wrap_key_data(np.zeros(2, np.uint32)))
    assert float(loss) == pytest.approx(np.log(17), rel=1e-3)  # at initialisation every token is equally likely


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(objective=dict(name="discrete"), model=MODEL, data=dict(name="digits8")), "places, vocabulary"),
        (dict(objective=dict(name="flow"), model=MODEL), "shape"),
        (dict(objective=dict(name="discrete"), model=MODEL | dict(shorten=3)), "does not divide the tokens of an example, 8x8"),
    ],
)
def test_models_objectives_and_data_that_do_not_go_together_are_refused(tiny, changes, said):
    config = config_lib.change(tiny(data=dict(name="digits8", tokens=True)), changes)
    if changes.get("data"):
        config = config_lib.change(config, dict(data=dict(tokens=False)))
    with pytest.raises(UserError, match=said):
        build.parts(config, build.data_source(config).codec)


def test_a_causal_model_is_not_trained_to_denoise(tiny):
    data = dict(name="shakespeare", tokenizer="bytes", length=32)
    config = tiny(data=data, model=dict(name="minigpt", width=8, depth=1, heads=2), objective=dict(name="discrete"))
    with pytest.raises(UserError, match="objective 'discrete' does not train model 'minigpt': choose one of microdit, hourglass, convnext"):
        build.parts(config, build.data_source(config).codec)
    config = config_lib.change(config, dict(model=MODEL, objective=dict(name="autoregressive")))
    with pytest.raises(UserError, match="objective 'autoregressive' does not train model 'hourglass': choose one of minigpt"):
        build.parts(config, build.data_source(config).codec)


@pytest.mark.parametrize("process", ["mask", "uniform"])
def test_eight_devices_take_the_same_steps_as_one(tiny, machine_of, metrics_of, tmp_path, process):
    few = FEW | dict(preview_every=0)
    config = tiny(data=dict(name="digits8", tokens=True), model=MODEL, objective=dict(name="discrete", process=process), train=few)
    lines = []
    for devices, mesh in ((1, {}), (8, dict(data=2, fsdp=2, tensor=2))):
        machine_of(devices)
        meshed = config_lib.change(config, dict(mesh=mesh, sharding=dict(min_size=8)))
        assert train.main(meshed, str(tmp_path / str(devices))) == 0
        lines.append(metrics_of(tmp_path / str(devices)))
    one, eight = ([{key: value for key, value in line.items() if "loss" in key} for line in each] for each in lines)
    for a, b in zip(one, eight, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
        assert "loss" in a
