"""`--config.a.b=v`: what `tinygen train` makes of a recipe and a command line."""

import pytest

from tinygen import config, keys


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "mine.py"
    path.write_text('from tinygen.config import base\n\ndef get_config(variant=""):\n    return base(data=dict(name="digits8"))\n')
    return str(path)


@pytest.fixture
def configured(called, recipe):
    """The configuration that `tinygen train` would run with under the given overrides."""
    return lambda *overrides: called("train", f"--config={recipe}", *overrides)[1][0]


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["--config.optim.lr=3e-4"], "optim.lr", 3e-4),
        (["--config.optim.lr=1"], "optim.lr", 1.0),
        (["--config.optim.lr", "3e-4"], "optim.lr", 3e-4),
        (["-config.optim.lr=3e-4"], "optim.lr", 3e-4),
        (["--config.batch_size=4"], "batch_size", 4),
        (["--config.mesh.data", "-1"], "mesh.data", -1),
        (["--config.objective.guidance_interval=[0.1,0.9]"], "objective.guidance_interval", (0.1, 0.9)),
        (["--config.objective.guidance_interval=(0,1)"], "objective.guidance_interval", (0.0, 1.0)),
        (["--noconfig.model.qk_norm"], "model.qk_norm", False),
        (["--config.model.qk_norm=false"], "model.qk_norm", False),
        (["--config.model.qk_norm", "false"], "model.qk_norm", False),
        (["--config.model.qk_norm"], "model.qk_norm", True),
        (["--config.data.label="], "data.label", ""),
        (["--config.sharding.rules=[('a/b$', (None, 'fsdp')), ('c', None)]"], "sharding.rules", (("a/b$", (None, "fsdp")), ("c", None))),
        (["--config.sharding.rules", "(('a', None),)"], "sharding.rules", (("a", None),)),
    ],
)
def test_an_override_sets_its_key_alone_with_the_keys_type(configured, recipe, overrides, key, value):
    plain, made = config.load(recipe), configured(*overrides)
    assert config.flatten(made)[key] == value
    assert type(config.flatten(made)[key]) is type(config.flatten(plain)[key])
    assert config.difference(plain, made).keys() <= {key}


def test_a_flag_after_a_boolean_override_is_not_its_value(called, recipe):
    _, (made, workdir, _), _ = called("train", f"--config={recipe}", "--noconfig.model.qk_norm", "--workdir=there", "--config.seed", "3")
    assert not made.model.qk_norm
    assert made.seed == 3
    assert workdir == "there"


@pytest.mark.parametrize("order", [1, -1])
def test_another_row_is_chosen_before_its_keys_are_set(configured, order):
    made = configured(*["--config.data.name=pixel_faces", "--config.data.label=hat"][::order])
    assert made.data.to_dict() == dict(name="pixel_faces", label="hat", overfit=0)
    assert configured("--config.data.name=pixel_faces").data.label == "hair_color"
    assert configured("--config.data.name", "digits").data.name == "digits"


def test_another_row_brings_keys_that_can_be_set_at_once(configured, monkeypatch):
    monkeypatch.setitem(keys.MODELS, "toy", dict(gain=2.5, sizes=(1, 2)))
    made = configured("--config.model.name=toy", "--config.model.gain=3", "--config.model.sizes=[4,5,6]")
    assert made.model.to_dict() == dict(name="toy", gain=3.0, sizes=(4, 5, 6))


def test_what_the_command_line_changed_is_passed_on_with_the_recipe(called, recipe):
    _, (made, _, origin), _ = called("train", f"--config={recipe}", "--config.optim.lr=0.5", "--config.batch_size=64")
    assert origin == {"recipe": recipe, "changed": {"optim.lr": (1e-3, 0.5)}}  # 64 it was
    assert made.optim.lr == 0.5


def test_a_recipe_is_described_with_its_overrides_instead_of_trained(called, recipe):
    module, (made,), _ = called("train", f"--config={recipe}", "--describe", "--config.batch_size=8")
    assert module == "describe"
    assert made.batch_size == 8
