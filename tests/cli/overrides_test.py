"""`--config.a.b=v`: what `tinygen train` makes of a recipe and a command line."""

import pytest

from tinygen import config
from tinygen.cli import main as cli
from tinygen.config import schema


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


@pytest.mark.parametrize(("words", "size"), [(["64"], (64,)), (["37,53"], (37, 53)), (["(37, 53)"], (37, 53)), (["64", "37"], (37,))])
def test_a_size_is_one_number_or_height_and_width_and_the_last_that_is_given_counts(configured, words, size):
    assert configured("--config.data.name=folder", *(f"--config.data.size={each}" for each in words)).data.size == size


@pytest.mark.parametrize(
    ("word", "said"),
    [("64x48", "'64x48' is a str, but must be a whole number such as 64, or several"), ("64 48", "not a comma-separated list")],
)
def test_a_size_that_is_none_is_refused_with_what_is_one(recipe, capsys, word, said):
    assert cli.main(["train", f"--config={recipe}", "--config.data.name=folder", f"--config.data.size={word}"]) == 2
    assert said in capsys.readouterr().err


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
    monkeypatch.setitem(
        schema.MODELS, "toy", schema.Section("a toy", gain=schema.key(2.5, "a factor"), sizes=schema.key((1, 2), "of layers"))
    )
    made = configured("--config.model.name=toy", "--config.model.gain=3", "--config.model.sizes=[4,5,6]")
    assert made.model.to_dict() == dict(name="toy", gain=3.0, sizes=(4, 5, 6))


def test_what_the_command_line_changed_is_passed_on_with_the_recipe(called, recipe):
    _, (made, _, origin), _ = called("train", f"--config={recipe}", "--config.optim.lr=0.5", "--config.batch_size=64")
    assert origin == {"recipe": recipe, "changed": {"optim.lr": (1e-3, 0.5)}}  # 64 it was
    assert made.optim.lr == 0.5


def test_a_recipe_is_described_with_its_overrides_instead_of_trained(called, recipe):
    module, (made,), _ = called("train", f"--config={recipe}", "--describe", "--config.batch_size=8")
    assert module == "training.describe"
    assert made.batch_size == 8


RECIPE = """
from tinygen.config import base, vary
def get_config(variant=""):
    made = base(
        data=dict(name="avatars", size=64, num=240, flip=True, label="mouth"), text=dict(tokens="bpe"),
        model=dict(name="microdit", width=96, heads=2, patch=4, time_scale=16.0), objective=dict(name="flow", t_mean=0.0, nfe=12),
    )
    return vary(made, variant, small=dict(data=dict(size=32, label="")), photos=dict(data=dict(name="folder")))
"""


@pytest.fixture
def faces(called, tmp_path):
    """faces(variant, *overrides): the configuration that `tinygen train` would run with."""
    path = tmp_path / "faces.py"
    path.write_text(RECIPE)
    return lambda variant, *overrides: called("train", f"--config={path}:{variant}", *overrides)[1][0]


@pytest.mark.parametrize("name", ["folder", "celeb_a", "tfds"])
def test_another_data_set_is_read_at_the_size_that_the_recipe_and_its_variant_set(faces, name):
    given = [f"--config.data.name={name}"]
    assert faces("", *given).data.size == (64,)  # which the row tfds has at 0, and that of the recipe at 64 too: it was set all the same
    assert faces("small", *given).data.size == (32,)
    assert faces("small", "--config.data.size=48", *given).data.size == (48,)
    assert faces("small", *given).data.flip


def test_a_variant_that_names_another_row_keeps_what_the_recipe_set(faces):
    assert (faces("small+photos").data.size, faces("photos+small").data.size, faces("photos").data.size) == ((32,), (32,), (64,))
    assert faces("photos").data.flip


def test_no_label_means_none_in_every_data_set_and_a_labels_name_nothing_in_another(faces):
    assert faces("small", "--config.data.name=folder").data.label == ""
    assert faces("", "--config.data.name=folder").data.label == "auto"
    assert faces("", "--config.data.name=pixel_faces").data.label == "hair_color"


def test_another_objective_or_model_keeps_what_means_the_same_there(faces):
    made = faces("", "--config.objective.name=improved_meanflow", "--config.model.name=convnext")
    assert (made.objective.t_mean, made.model.patch, made.model.time_scale) == (0.0, 4, 16.0)  # t_mean of the row: -0.4
    assert (made.objective.nfe, made.objective.sampler) == (1, "average")  # twelve steps of Heun are no steps of an average velocity
    assert faces("", "--config.objective.name=edm").objective.nfe == 12
    assert faces("", "--config.model.name=minigpt").model.width == 96
    assert faces("", "--config.model.name=classifier").model.width == 32  # of its first stage


def test_what_cannot_be_carried_over_is_said_in_one_line_with_its_old_value(faces, capsys):
    faces("", "--config.data.name=digits")
    said = capsys.readouterr().err
    assert said == (
        "tinygen: config.data.name=digits in place of avatars drops values of the recipe: "
        "num=240, size=(64,), label='mouth' (now 'label'), flip=True\n"
    )
    faces("", "--config.data.name=pixel_faces", "--config.data.label=hat", "--config.objective.name=meanflow")
    objective, data = capsys.readouterr().err.splitlines()
    assert "objective.name=meanflow in place of flow drops values of the recipe: nfe=12 (now 1)" in objective
    assert "label" not in data  # which has been given
    faces("small", "--config.data.name=avatars")
    faces("photos")  # a recipe's own variant says what its author meant
    assert capsys.readouterr().err == ""
