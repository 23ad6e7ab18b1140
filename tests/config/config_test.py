import inspect
import json

import pytest

from tinygen import build, config
from tinygen.config import schema
from tinygen.data.codec import Codec, Field
from tinygen.data.text.prompt import Prompt
from tinygen.errors import UserError
from tinygen.media import Array, Text
from tinygen.media.vocabulary import Vocabulary

ROWS = [(section, name) for section, table in schema.TABLES.items() for name in table]


def refusal(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "wrong", "nearest"),
    [
        (dict(bach_size=3), "bach_size", "batch_size"),
        (dict(optim=dict(lrr=1.0)), "lrr", "lr"),
        (dict(model=dict(widht=64)), "widht", "width"),
        (dict(data=dict(name="digits", lable="label")), "lable", "label"),
        (dict(objective=dict(guidanse=2.0)), "guidanse", "guidance"),
        (dict(model=dict(name="microdti")), "microdti", "microdit"),
        (dict(data=dict(name="pixel_face")), "pixel_face", "pixel_faces"),
        (dict(objective=dict(name="flwo")), "flwo", "flow"),
    ],
)
def test_an_unknown_key_or_row_is_refused_with_the_nearest_known_one(changes, wrong, nearest):
    message = refusal(config.base, **changes)
    assert f"{wrong!r}" in message
    assert f"did you mean {nearest!r}?" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "changes",
    [
        dict(batch_size="64"),
        dict(batch_size=6.4),
        dict(batch_size=True),
        dict(precision=32),
        dict(optim=dict(lr="1e-3")),
        dict(optim=dict(lr=True)),
        dict(optim=dict(lr=None)),
        dict(optim=3),
        dict(model=dict(qk_norm=1)),
        dict(data="digits"),
        dict(seed=dict(value=3)),
        dict(objective=dict(guidance_interval="0.5")),
        dict(objective=dict(guidance_interval=["0.1", "0.9"])),
        *(dict(data=dict(name="folder", size=size)) for size in ("64x48", 6.4, True, (64, "48"), (True, False))),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_line(changes):
    message = refusal(config.base, **changes)
    assert next(iter(changes)) in message or "'digits'" in message
    assert "\n" not in message


def test_a_size_is_one_number_or_height_and_width_in_recipes_and_in_files_of_earlier_releases():
    sizes = [config.base(data=dict(name="folder", size=size)).data.size for size in (64, (37, 53), [37, 53])]
    assert sizes == [(64,), (37, 53), (37, 53)]
    earlier = config.to_json(config.base(data=dict(name="tfds", size=32))).replace("[\n      32\n    ]", "32")
    assert '"size": 32' in earlier
    assert config.from_json(earlier) == config.base(data=dict(name="tfds", size=(32,)))


def test_an_int_will_do_for_a_float_and_a_list_for_a_tuple():
    made = config.base(optim=dict(lr=1), objective=dict(guidance_interval=[0, 1]))
    assert (type(made.optim.lr), made.optim.lr) == (float, 1.0)
    assert made.objective.guidance_interval == (0.0, 1.0)
    assert type(made.objective.guidance_interval) is tuple
    assert [type(end) for end in made.objective.guidance_interval] == [float, float]


def test_the_configuration_is_locked():
    made = config.base()
    with pytest.raises(AttributeError, match="lrr"):
        made.optim.lrr = 1.0
    with pytest.raises(TypeError, match="lr"):
        made.optim.lr = "fast"


def test_the_defaults_are_complete_and_plain():
    flat = config.flatten(config.base())
    assert {"seed", "optim.lr", "mesh.fsdp", "data.label", "model.width", "objective.nfe"} <= flat.keys()
    assert {type(value) for value in flat.values()} == {str, int, float, bool, tuple}
    assert flat["objective.guidance_interval"] == (0.0, 1.0)


def test_json_gives_back_an_equal_configuration_tuples_included():
    made = config.base(seed=7, data=dict(name="digits", label=""), objective=dict(guidance_interval=(0.25, 0.75)), optim=dict(lr=3e-4))
    again = config.from_json(config.to_json(made))
    assert again == made
    assert config.difference(made, again) == {}
    assert type(again.objective.guidance_interval) is tuple
    assert again.is_locked


def test_keys_missing_in_old_json_are_filled_from_the_table():
    made = config.base(data=dict(name="digits8"), model=dict(width=64))
    old = json.loads(config.to_json(made))
    del old["model"]["qk_norm"], old["train"]["keep_every"], old["objective"]["guidance_interval"], old["sharding"]
    assert config.from_json(json.dumps(old)) == made


def test_a_key_of_the_json_that_no_table_has_is_refused():
    old = json.loads(config.to_json(config.base()))
    old["model"]["dropuot"] = 0.1
    assert "dropuot" in refusal(config.from_json, json.dumps(old))


def test_rules_of_sharding_are_the_same_after_json():
    made = config.base(sharding=dict(rules=[("a$", (None, "fsdp")), ("b", None)]))
    assert config.from_json(config.to_json(made)) == made
    assert made.sharding.rules == (("a$", (None, "fsdp")), ("b", None))
    assert config.change(made, dict(sharding=dict(rules=[["c", ["tensor"]]]))).sharding.rules == (("c", ("tensor",)),)


@pytest.mark.parametrize(
    "key",
    [
        *("precision", "sharding.rules", "mesh.data", "mesh.tensor", "sharding.min_size", "train.steps", "objective.nfe"),
        *("optim.lr", "optim.schedule", "optim.warmup", "optim.decay_steps", "optim.final_lr", "optim.accumulate"),
    ],
)
def test_marked_keys_may_change_on_resume(key):
    made = config.base()
    assert key in config.flatten(made)
    assert config.may_change(key, made)


@pytest.mark.parametrize("key", ["seed", "batch_size", "model.name", "model.width", "data.name", "data.label", "optim.b1", "ema.decay"])
def test_other_keys_may_not_change_on_resume(key):
    made = config.base()
    assert key in config.flatten(made)
    assert not config.may_change(key, made)


def test_vary_makes_the_named_changes_and_refuses_an_unknown_variant():
    made = config.base()
    assert config.vary(made, "", smoke=dict(batch_size=2)) == made
    smoke = config.vary(made, "smoke", smoke=dict(batch_size=2, model=dict(width=32)))
    assert config.difference(made, smoke) == {"batch_size": (64, 2), "model.width": (256, 32)}
    assert "did you mean 'smoke'?" in refusal(config.vary, made, "smok", smoke=dict(batch_size=2))


def test_difference_lists_changed_keys_and_those_that_one_side_lacks(monkeypatch):
    monkeypatch.setitem(schema.MODELS, "toy", schema.Section("a toy", width=schema.key(256, "features"), gain=schema.key(2.5, "a factor")))
    made = config.base()
    other = config.change(made, dict(seed=1, model=dict(name="toy")))
    changed = config.difference(made, other)
    assert changed["seed"] == (0, 1)
    assert changed["model.name"] == ("microdit", "toy")
    assert changed["model.gain"] == (None, 2.5)
    assert changed["model.depth"] == (8, None)
    assert "model.width" not in changed


@pytest.mark.parametrize(
    "changes",
    [
        dict(batch_size=0),
        dict(seed=-1),
        dict(seed=2**32),  # JAX would cut it to 32 bits: the streams of seed 0
        dict(precision="float16"),
        dict(optim=dict(lr=0.0)),
        dict(optim=dict(lr=float("nan"))),
        dict(optim=dict(lr=float("inf"))),
        dict(optim=dict(clip=-1.0)),
        dict(optim=dict(schedule="cosine")),
        dict(optim=dict(accumulate=0)),
        dict(optim=dict(accumulate=3)),
        dict(ema=dict(decay=1.0)),
        dict(optim=dict(b1=0.9999999999)),  # 1 in float32: Adam's correction of its moments would be 0 / 0
        dict(optim=dict(b2=0.9999999999)),
        dict(optim=dict(final_lr=1e300)),
        dict(optim=dict(weight_decay=1e39)),
        dict(data=dict(overfit=-1)),
        dict(train=dict(steps=0)),
        dict(train=dict(eval_every=-1)),
        dict(train=dict(keep=0)),
    ],
)
def test_values_that_no_run_could_use_are_refused(changes):
    config.check(config.base())
    message = refusal(config.check, config.base(**changes))
    assert "\n" not in message
    assert any(key in message for key in (next(iter(changes)), *next(iter(config.flatten(changes)))))


@pytest.fixture
def recipe(tmp_path):
    def write(text):
        path = tmp_path / "recipe.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("this is prose", "not a Python file"),
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("x = 1", "has no function get_config"),
        ("get_config = 3", "has no function get_config"),
        ("def get_config():\n  return {}", "get_config('')"),
        ("def get_config(variant=''):\n  return {}", "returned dict"),
        ("def get_config(variant=''):\n  return {}['missing']", "KeyError"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_in_one_line(recipe, text, said):
    message = refusal(config.load, recipe(text))
    assert said in message
    assert "recipe.py" in message
    assert "\n" not in message


def test_a_missing_file_and_a_folder_are_no_recipe(tmp_path):
    for path in (tmp_path / "nowhere.py", tmp_path):
        assert f"no config file '{path}'" in refusal(config.load, f"{path}:smoke")


def test_a_recipes_own_mistake_keeps_its_message(recipe):
    text = "from tinygen.config import base\ndef get_config(variant=''):\n  return base(optim=dict(lrr=1))\n"
    assert "did you mean 'lr'?" in refusal(config.load, recipe(text))


def test_load_gives_the_variant_and_leaves_no_cache(recipe, tmp_path):
    text = """
from tinygen.config import base, vary
def get_config(variant=""):
    return vary(base(data=dict(name="pixel_faces", label="hat")), variant, smoke=dict(batch_size=2))
"""
    path = recipe(text)
    assert config.load(path).batch_size == 64
    assert config.load(f"{path}:smoke").batch_size == 2
    assert [each.name for each in tmp_path.iterdir()] == ["recipe.py"]


def constructor_of(section, name):
    table = {"model": build.MODELS, "objective": build.OBJECTIVES, "data": build.datasets()}[section]
    row = table[name]
    parameters = dict(inspect.signature(row.__init__ if isinstance(row, type) else row).parameters)
    parameters.pop("self", None)
    return parameters


def test_the_tables_of_names_and_of_keywords_have_the_same_rows():
    assert schema.MODELS.keys() == build.MODELS.keys()
    assert schema.OBJECTIVES.keys() == build.OBJECTIVES.keys()
    assert schema.DATASETS.keys() == build.datasets().keys()


@pytest.mark.parametrize(("section", "name"), ROWS)
def test_a_rows_keywords_and_the_datas_facts_are_exactly_the_constructors(section, name):
    spec = {key: Field(shape=(2,), dtype="int32", high=1) for key in ("x", "y", "tokens")}
    tokens = {key: Field(shape=(2,), dtype="int32", low=0, high=256) for key in ("tokens", "target", "segment")}
    codecs = (
        Codec(medium=Array("any"), spec=spec),
        Codec(medium=Text(Vocabulary(kind="bytes")), spec=tokens, conditions=(Prompt(Vocabulary(kind="bytes")),)),
    )
    facts = {"known", "prepares"} if section == "data" else {"precision"}.union(*(codec.facts() for codec in codecs))
    facts |= {"attention", "needs_jvp", "inputs", "head", "remat", "scan", "rngs"} if section == "model" else set()
    keywords, parameters = set(schema.TABLES[section][name]), constructor_of(section, name)
    assert keywords <= parameters.keys()
    assert parameters.keys() - keywords <= facts
    assert not keywords & facts


@pytest.mark.parametrize(("section", "name"), ROWS)
def test_constructors_take_keywords_only_and_have_no_defaults(section, name):
    for parameter in constructor_of(section, name).values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, parameter
        assert parameter.default is inspect.Parameter.empty, parameter
