"""What another run's weights may be the beginning of, and a small stage that begins a larger one."""

import dataclasses

import pytest
from etils import epath

from tinygen import build, train
from tinygen import config as config_lib
from tinygen.checkpoints.store import Saved
from tinygen.data.codec import Codec, Field
from tinygen.data.domain import Latents
from tinygen.data.labels import Labels
from tinygen.errors import UserError
from tinygen.media import Array, Image
from tinygen.training import warm_start

CURE = "--config.init.partial=True"


def codec(height=32, width=32, channels=3, labels=("black", "blond"), kind="image", **more):
    x = Field(shape=(height, width, channels), dtype="float32", low=-1.0, high=1.0)
    label = {"label": Field(shape=(), dtype="int32", low=0, high=len(labels) - 1)} if labels else {}
    medium = Image() if kind == "image" else Array(kind)
    return Codec(medium=medium, spec={"x": x, **label, **more}, conditions=(Labels(tuple(labels)),) if labels else ())


def config(**changes):
    return config_lib.base(**{"init": dict(ckpt="earlier"), "model": dict(name="microdit", patch=4)} | changes)


def saved(its_codec=None, **changes):
    return Saved(epath.Path("earlier"), 9, config(**changes), its_codec or codec(), {})


def microdit(**keys):
    return dict(name="microdit", patch=4, **keys)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(model=microdit(heads=8)), "model.heads: 4 -> 8"),  # arrays of the same shapes, but for the norms
        (dict(model=microdit(time_scale=1.0)), "model.time_scale: 1000.0 -> 1.0"),
        (dict(model=microdit(positions="rope")), "model.positions: 'sincos' -> 'rope'"),
        (dict(model=microdit(adaln="shared")), "model.adaln: 'block' -> 'shared'"),
        (dict(model=microdit(capacity=1.0)), "model.capacity: 2.0 -> 1.0"),
        (dict(model=dict(name="mlp")), "model.name: 'microdit' -> 'mlp'."),
        (dict(objective=dict(name="edm")), "objective.name: 'flow' -> 'edm'."),
        (dict(model=microdit(heads=8, depth=4), objective=dict(name="edm")), "model.depth: 8 -> 4; model.heads: 4 -> 8; objective.name: "),
    ],
    ids=str,
)
def test_a_key_that_gives_weights_another_meaning_is_refused_with_both_values(changes, said):
    with pytest.raises(UserError) as refused:
        warm_start.check_model(config(**changes), saved())
    assert str(refused.value).startswith("config.init.ckpt=earlier is a run of another model (its -> this run's): ")
    assert said in str(refused.value)
    assert CURE in str(refused.value)
    warm_start.check_model(config(**changes, init=dict(ckpt="earlier", partial=True)), saved())


def test_what_edms_network_predicts_hangs_on_sigma_data_alone():
    def edm(**keys):
        return dict(objective=dict(name="edm", **keys))

    with pytest.raises(UserError, match=r"objective.sigma_data: 0.5 -> 0.7"):
        warm_start.check_model(config(**edm(sigma_data=0.7)), saved(**edm(sigma_data=0.5)))
    warm_start.check_model(config(**edm(p_mean=-0.6, p_std=1.0, cond_drop=0.2, nfe=8, rho=5.0, sigma_max=40.0)), saved(**edm()))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (dict(model=microdit(mask=0.0)), dict(model=microdit(mask=0.75))),
        (dict(model=microdit(position_grid=8)), dict()),  # where images have grown, which is for the data to say
        (dict(objective=dict(name="flow", t_mean=1.0, t_std=0.5, cond_drop=0.2, sampler="euler", guidance=3.0)), dict()),
        (dict(model=dict(name="mlp", dropout=0.5)), dict(model=dict(name="mlp"))),
        (dict(seed=3, batch_size=8, remat="full", optim=dict(lr=1.0), train=dict(steps=3)), dict()),
    ],
    ids=str,
)
def test_how_weights_are_trained_may_differ(mine, theirs):
    warm_start.check_model(config(**mine), saved(**theirs))


def test_of_many_differences_six_are_named():
    other = microdit(width=64, depth=2, heads=2, mlp_ratio=2.0, mlp_multiple=8, mixer_depth=1, qk_norm=False, adaln="shared")
    with pytest.raises(UserError, match=r"; and 2 more\.\n") as refused:
        warm_start.check_model(config(model=other), saved())
    assert len(str(refused.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (codec(labels=("blond", "black")), "label 0: 'black' -> 'blond'"),
        (codec(labels=("black", "blond", "red")), "labels: 2 -> 3; label 2: None -> 'red'"),
        (codec(labels=()), "labels: 2 -> 0; label 0: 'black' -> None"),
        (codec(channels=1), "shape of x: (3,) -> (1,)"),
        (codec(tokens=Field(shape=(4,), dtype="int32", low=0, high=9)), "shape of tokens: None -> (4,)"),
        (codec(kind="latent"), "kind: 'image' -> 'latent'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_data_that_the_weights_do_not_know_are_refused_with_what_differs(mine, said):
    with pytest.raises(UserError) as refused:
        warm_start.check_data(config(), mine, saved())
    assert str(refused.value).startswith("config.init.ckpt=earlier is a run of other data (its -> this run's): ")
    assert said in str(refused.value)
    assert CURE in str(refused.value)
    warm_start.check_data(config(init=dict(ckpt="earlier", partial=True)), mine, saved())


def test_images_of_another_size_are_refused_until_their_positions_are_interpolated():
    for grid in (0, 16, 4):
        with pytest.raises(UserError) as refused:
            warm_start.check_data(config(model=microdit(position_grid=grid)), codec(64, 64), saved())
        assert str(refused.value) == (
            "config.init.ckpt=earlier: the images are 64x64 where the checkpoint's were 32x32: "
            "--config.model.position_grid=8 interpolates their positions"
        )
    interpolated = config(model=microdit(position_grid=8))
    warm_start.check_data(interpolated, codec(64, 64), saved())
    warm_start.check_data(interpolated, codec(128, 128), saved(codec(64, 64), model=microdit(position_grid=8)))  # a third stage
    warm_start.check_data(config(init=dict(ckpt="earlier", partial=True)), codec(64, 64), saved())


def test_images_of_the_same_size_keep_the_positions_that_they_had():
    for grid in (0, 8):  # the same, in two ways
        warm_start.check_data(config(model=microdit(position_grid=grid)), codec(), saved())
    said = r"^config.model.position_grid=4: positions span 8 rows of patches in earlier: --config.model.position_grid=8$"
    with pytest.raises(UserError, match=said):
        warm_start.check_data(config(model=microdit(position_grid=4)), codec(), saved())


def test_positions_of_patches_that_do_not_divide_the_images_stay_and_are_not_interpolated():
    earlier = saved(codec(37, 53))  # 10x14 patches of 4
    for grid in (0, 10):
        warm_start.check_data(config(model=microdit(position_grid=grid)), codec(37, 53), earlier)
    with pytest.raises(UserError, match=r"the images are 74x106 where .* were 37x53, and their patches do not divide both"):
        warm_start.check_data(config(model=microdit(position_grid=10)), codec(74, 106), earlier)


def test_positions_of_other_proportions_are_not_interpolated():
    with pytest.raises(UserError, match=r"the images are 64x32 where .* were 32x32, which is no multiple in both directions"):
        warm_start.check_data(config(model=microdit(position_grid=8)), codec(64, 32), saved())
    warm_start.check_data(config(model=microdit(position_grid=8)), codec(64, 32), saved(codec(32, 16)))


def test_a_model_without_positions_keeps_its_size():
    classifier = dict(model=dict(name="classifier"), objective=dict(name="classification"))
    with pytest.raises(UserError, match=r"64x64 where .* 32x32, and model 'classifier' has no positions to interpolate"):
        warm_start.check_data(config(**classifier), codec(64, 64), saved(**classifier))
    warm_start.check_data(config(**classifier), codec(), saved(**classifier))


# Runs


@pytest.fixture
def faces(tmp_path_factory, machine_of, monkeypatch):
    """faces(variant, steps, **keys of the model): the recipe of faces, as small as can be, in patches of 8."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path_factory.getbasetemp() / "tfds"))
    machine_of(1)

    def load(variant, steps, init="", **model):
        recipe = config_lib.load(f"configs/dit_faces_80m.py:{variant}+smoke")
        model = dict(patch=8, width=32, depth=1, mlp_multiple=8, mixer_depth=1, mixer_width=32, **model)
        few = dict(steps=steps, log_every=steps, eval_every=steps, preview_every=0)
        changes = dict(precision="float32", optim=dict(lr=3e-3), ema=dict(decay=0.9), model=model, train=few, init=dict(ckpt=str(init)))
        return config_lib.change(recipe, changes)

    return load


@pytest.mark.slow
def test_a_masked_stage_of_small_images_begins_one_of_large_whole_images(faces, tmp_path, monkeypatch, metrics_of):
    first = tmp_path / "first"
    assert train.main(faces("masked+small", 50), str(first)) == 0
    for name, init in {"begun": first, "drawn": ""}.items():
        assert train.main(faces("grown+unmasked", 1, init, position_grid=4), str(tmp_path / name)) == 0
    begun, drawn = (metrics_of(tmp_path / name)[-1]["eval_ema_loss"] for name in ("begun", "drawn"))
    assert begun < 0.95 * drawn

    refused = tmp_path / "refused"
    with pytest.raises(UserError, match=r"64x64 where the checkpoint's were 32x32: --config.model.position_grid=4 interpolates"):
        train.main(faces("unmasked", 1, first), str(refused))
    with pytest.raises(UserError, match="the data have changed since this run began"):
        train.main(faces("masked", 51), str(first))
    monkeypatch.setattr(build, "data_source", lambda config: pytest.fail("prepared data"))
    with pytest.raises(UserError, match=r"model.time_scale: 1000.0 -> 1.0"):
        train.main(faces("masked+small", 1, first, time_scale=1.0), str(refused))
    assert not refused.exists()


def latent_codec(**changes):
    about = dict(
        name="vae", sha256="a" * 64, source="vae", factor=4, image=(128, 128, 3), scale=0.5, shift=(0.0, 0.1, 0.2), data={}, images="faces"
    )
    return dataclasses.replace(codec(labels=()), domain=Latents(**about | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [(dict(sha256="b" * 64), r"autoencoder: vae \(sha256 aaaaaaaaaaaaaaaa\) -> vae \(bbbbbbbbbbbbbbbb\)"), (dict(scale=0.6), "--like=DIR")],
    ids=["another autoencoder", "another scale"],
)
def test_latents_that_mean_something_else_are_refused(changes, said):
    earlier = saved(latent_codec())
    warm_start.check_data(config(), latent_codec(), earlier)
    with pytest.raises(UserError, match=said):
        warm_start.check_data(config(), latent_codec(**changes), earlier)
    warm_start.check_data(config(init=dict(ckpt="earlier", partial=True)), latent_codec(**changes), earlier)


@pytest.mark.parametrize(
    ("key", "may"),
    [
        ("model.mask", True), ("model.position_grid", True), ("objective.cond_drop", True), ("objective.nfe", True),
        ("model.heads", False), ("model.positions", False), ("model.name", False), ("objective.name", False),
    ],
)  # fmt: skip
def test_keys_that_say_how_weights_are_trained_may_differ_from_those_of_the_run_they_come_from(key, may):
    made = config_lib.base()
    assert key in config_lib.flatten(made)
    assert config_lib.may_differ(key, made) == may
