"""Another row of a table: what was set for the one before, and goes with it or does not."""

import itertools

import pytest

from tinygen import config
from tinygen.config import rows, schema


def toy(**defaults):
    return schema.Section("a toy", **{name: schema.key(default, "of a toy") for name, default in defaults.items()})


def test_another_name_brings_the_other_rows_keywords_and_keeps_what_was_set_and_the_sections_own(monkeypatch):
    monkeypatch.setitem(schema.MODELS, "toy", toy(width=5, depth=3, heads="many", gain=2.5))
    made = config.base(model=dict(width=64, heads=2), data=dict(name="pixel_faces", label="hat", overfit=9))
    changed = config.change(made, dict(model=dict(name="toy", gain=3)))
    assert changed.model.to_dict() == dict(name="toy", width=64, depth=3, heads="many", gain=3.0)  # depth was not set; heads is no text
    digits = config.change(made, dict(data=dict(name="digits")))
    assert digits.data.to_dict() == dict(name="digits", label="label", overfit=9)
    assert made.model.width == 64  # the original is left alone
    assert config.change(made, dict(model=dict(name="microdit"))) == made  # the same name changes nothing
    assert config.change(made, dict(model=dict(name="toy", width=7))).model.width == 7  # and what is given with the name wins


def test_what_was_set_is_remembered_through_changes_and_however_it_was_set(monkeypatch):
    monkeypatch.setitem(schema.MODELS, "toy", toy(width=5, heads=6))
    other, microdit = dict(model=dict(name="toy")), dict(model=dict(name="microdit"))
    made = config.base(model=dict(width=256))  # the row's default, but set
    assert config.change(made, other).model.width == 256
    assert config.change(config.change(config.change(made, dict(seed=1)), other), microdit).model.width == 256
    assert config.change(config.base(), other).model.width == 5
    with (assigned := config.base()).unlocked():
        assigned.model.heads = 3
    assert config.change(assigned, other).model.to_dict() == dict(name="toy", width=5, heads=3)
    assert made == config.base()  # what was set is no value


def test_keys_of_a_group_that_two_rows_share_are_carried_over_though_they_mean_nothing_elsewhere():
    made = config.base(objective=dict(name="meanflow", nfe=2))
    assert config.change(made, dict(objective=dict(name="improved_meanflow"))).objective.nfe == 2
    assert config.change(made, dict(objective=dict(name="flow"))).objective.nfe == 50


@pytest.mark.parametrize("section", schema.TABLES)
def test_every_value_that_any_row_carries_over_is_one_that_the_other_row_takes(section):
    """Of the type, and no name of what is not there: a value that is no number, a truth or "" names something, unless all rows know it."""
    known = {"crop", "uniform", "heun", "bytes"}  # words that mean the same in each row that has the key
    for old, new in itertools.permutations(schema.TABLES[section], 2):
        made = config.base(**{section: {"name": old, **rows.row(section, old)}})
        both = config.change(made, {section: {"name": new}})[section].to_dict()
        for key, default in rows.row(section, new).items():
            assert type(both[key]) is type(default)
            assert both[key] == default or not isinstance(both[key], str) or both[key] in known | {""}, (old, new, key)
