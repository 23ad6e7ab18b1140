"""The declarations of keys, and what `tinygen keys` shows of them."""

import pytest

from tinygen import config
from tinygen.cli import key_listing
from tinygen.cli import main as cli
from tinygen.config import schema
from tinygen.data.captions import tokenized
from tinygen.data.images import pixels
from tinygen.media import vocabulary
from tinygen.models import microdit, minigpt
from tinygen.nn import attention, depthwise, stack
from tinygen.samplers import table, time_grids

GROUPS = {group.address: group for group in key_listing.groups()}


@pytest.fixture
def shown(capsys, monkeypatch):
    def run(*arguments, columns=100):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(["keys", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_there_is_a_group_for_every_section_and_row():
    assert {"", "optim", "text", "model.microdit", "data.folder", "objective.flow"} <= GROUPS.keys()
    assert sum("." in address for address in GROUPS) == sum(map(len, schema.TABLES.values()))


@pytest.mark.parametrize("address", GROUPS)
def test_every_section_row_and_key_has_a_meaning_and_a_default_that_its_constraint_allows(address):
    for name, key in GROUPS[address].keys.items():
        key.check(name, key.default)
        assert key.meaning
        assert not key.meaning.endswith(".")
    assert GROUPS[address].meaning


@pytest.mark.parametrize(
    ("address", "name", "known"),
    [
        ("", "remat", stack.REMAT),
        ("", "attention", attention.METHODS),
        ("text", "text.tokens", ("", *tokenized.METHODS)),
        ("model.microdit", "model.positions", microdit.POSITIONS),
        ("model.minigpt", "model.positions", minigpt.POSITIONS),
        ("model.minigpt", "model.feed_forward", minigpt.FEED_FORWARDS),
        ("model.convnext", "model.depthwise", depthwise.METHODS),
        ("objective.flow", "objective.sampler", table.SAMPLERS),
        ("objective.flow", "objective.time_grid", time_grids.GRIDS),
        ("data.folder", "data.fit", pixels.FITS),
        ("data.text", "data.tokenizer", vocabulary.KINDS),
    ],
)
def test_choices_are_those_of_the_code_that_takes_them(address, name, known):
    assert tuple(GROUPS[address].keys[name].choices) == tuple(known)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (schema.key(1, "steps", low=1), 0, "must be 1 or more"),
        (schema.key(1, "steps", low=1, high=10**6), 10**6 + 1, "must be at most 1,000,000"),
        (schema.key(1.0, "a rate", low=1e-30), 0.0, "must be positive"),
        (schema.key(1.0, "a rate", low=1e-30), float("nan"), "must be positive"),
        (schema.key(1.0, "a rate", low=1e-30), float("inf"), "must be at most 1e+30"),
        (schema.key("a", "a name", choices=("a", "bcd")), "bce", "did you mean 'bcd'?"),
    ],
)
def test_a_value_outside_of_a_keys_constraint_is_refused(key, value, said):
    with pytest.raises(config.UserError) as caught:
        key.check("config.some", value)
    assert "config.some" in str(caught.value)
    assert said in str(caught.value)


def test_a_key_is_shown_with_its_default_type_meaning_constraint_and_marks(shown):
    lines = shown().splitlines()
    assert "optim.lr=0.001 float peak learning rate; positive [resume]" in [" ".join(line.split()) for line in lines]
    assert any(line.startswith("model.mlp: ") for line in lines)
    assert [line for line in lines if line.startswith("[resume] may change when a run is resumed")]
    for group in GROUPS.values():
        assert all(f"{name}=" in "\n".join(lines) for name in group.keys)


@pytest.mark.parametrize(
    ("prefix", "has", "lacks"),
    [
        ("optim", "optim.lr=", "train.steps="),
        ("model.microdit", "model.patch=", "model.side="),
        ("microdit", "model.patch=", "model.side="),
        ("model.width", "model.minigpt: ", "model.depth="),
        ("lr", "optim.lr=", "optim.final_lr="),
        ("seed", "seed=", "batch_size="),
    ],
)
def test_a_prefix_selects_a_section_a_row_or_a_key(shown, prefix, has, lacks):
    found = shown(prefix)
    assert has in found
    assert lacks not in found


def test_lines_are_as_long_as_the_terminal_is_wide(shown):
    narrow, wide = shown("optim", columns=60), shown("optim", columns=120)
    assert len(narrow.splitlines()) > len(wide.splitlines())
    indented = [line for line in narrow.splitlines() if line.startswith(" ")]
    assert max(map(len, indented)) <= 60
    assert narrow.split()[:8] == wide.split()[:8]
