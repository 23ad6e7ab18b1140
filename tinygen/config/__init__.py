"""A configuration: a locked ConfigDict whose keys are those of `tinygen.config.schema`, type-checked.

A recipe calls `base(...)` with its changes and `vary(...)` for its variants:

    def get_config(variant=""):
        config = base(data=dict(name="digits"), model=dict(name="microdit", width=256), ...)
        return vary(config, variant, smoke=dict(model=dict(width=32)))
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from tinygen.config import cluster, recipes, rows
from tinygen.config.key import RESUME, STAGE
from tinygen.config.schema import SCHEMA, TABLES
from tinygen.errors import UserError, unknown

CHOSEN = "_chosen"  # the attribute of a configuration that records which keys were set

Config = Any  # a locked ConfigDict with the attributes of SCHEMA, which a type checker cannot see


def base(**changes: Any) -> Config:
    """The default configuration with `changes` (nested dicts) applied: complete, type-checked and locked.

    Raises UserError for an unknown key, naming the nearest, and for a value of the wrong type.
    """
    tree = rows.defaults(SCHEMA)
    for name in TABLES:
        section = changes.get(name, {})
        row = section.get("name", tree[name]["name"]) if isinstance(section, Mapping) else section
        tree[name] |= rows.row(name, row)
    return _locked(rows.merged(tree, changes), _row_keys(changes))


def vary(config: Config, variant: str = "", **variants: Mapping[str, Any]) -> Config:
    """`config` with the named variants applied in order, "deep+smoke"; "" changes nothing. Raises UserError for an unknown variant."""
    for name in variant.split("+") if variant else ():
        if name not in variants:
            raise unknown("variant", name, variants)
        config = change(config, variants[name])
    return config


def change(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of `config` with nested `changes` applied. A section with a new `name` gets that row's defaults, except for `chosen` values of
    the old row that carry over (for the rule see `tinygen.config.key.Mark.OWN`).
    """
    tree, kept = config.to_dict(), set(_row_keys(changes))
    for section in TABLES:
        old = tree[section]["name"]
        name = changes.get(section, {}).get("name", old)
        values = {key: tree[section][key] for key in chosen(config, section)}
        if name != old:
            row = rows.row(section, name)
            values = rows.carried(section, old, name, values)
            tree[section] = {key: tree[section][key] for key in SCHEMA[section]} | {"name": name} | row | values
        kept |= {f"{section}.{key}" for key in values}
    return _locked(rows.merged(tree, changes), kept)


def chosen(config: Config, section: str) -> list[str]:
    """The keys of a section's row that a recipe, a variant or an override has set, even if to their defaults."""
    noted = getattr(config, CHOSEN, ())
    row = rows.row(section, config[section].name)
    return [key for key, default in row.items() if f"{section}.{key}" in noted or config[section][key] != default]


def lost(old: Config, new: Config) -> dict[str, dict[str, tuple[Any, Any]]]:
    """{section: {key: (old value, new value)}} of values chosen in `old` that were lost in `new` by selecting another row; the new value is
    None if that row lacks the key.
    """
    changed = [section for section in TABLES if old[section].name != new[section].name]
    pairs = {section: {key: (old[section][key], new[section].get(key)) for key in chosen(old, section)} for section in changed}
    return {section: {key: (a, b) for key, (a, b) in found.items() if a != b} for section, found in pairs.items()}


def load(spec: str) -> Config:
    """The configuration of a recipe, `NAME[:VARIANT]` or `PATH.py[:VARIANT]`. Raises UserError if it is not a recipe."""
    path, variant = recipes.located(spec)
    cure = "(variant=''): 'tinygen recipes --copy=dit_digits' writes one that has"
    config = recipes.call(path, "get_config", variant, missing=cure)
    if not isinstance(config, ConfigDict) or not SCHEMA.keys() <= set(config):
        raise UserError(f"get_config() in {path} returned {type(config).__name__}, not the ConfigDict of tinygen.config.base()")
    return config


def sweep(spec: str) -> dict[str, Config]:
    """{name: configuration} of a recipe's sweep, `NAME[:VARIANT]` or `PATH.py[:VARIANT]`: the recipe with the changes of each entry of its
    function `sweep()`, which returns {name: nested changes}. Entries that change nothing, for example in this variant, are left out.
    """
    path, _ = recipes.located(spec)
    config = load(spec)
    entries = recipes.call(path, "sweep", missing="(), which gives {name: changes}, as that of convnext_mnist_imf does")
    if not isinstance(entries, Mapping) or not all(isinstance(changes, Mapping) for changes in entries.values()):
        raise UserError(f"sweep() in {path} returned {repr(entries)[:80]}, not {{name: nested changes}}")
    changed = {}
    for name, changes in entries.items():
        try:
            changed[str(name)] = change(config, changes)
        except UserError as error:
            raise UserError(f"sweep() in {path}, {name}: {error}") from error
    return {name: each for name, each in changed.items() if difference(config, each)}


def check(config: Config) -> None:
    """Raises UserError for values that are invalid for any model. Imports nothing heavy."""
    cluster.parse(config.distributed)
    values = flatten(config)
    for name, key in rows.known(_rows(config)).items():
        key.check(f"config.{name}", values[name])
    if config.text.tokens and config.text.embeddings:
        raise UserError(f"config.text.tokens={config.text.tokens} and config.text.embeddings={config.text.embeddings}: set one, not both")
    if config.batch_size % (parts := config.optim.accumulate):
        raise UserError(f"config.batch_size={config.batch_size} does not divide into optim.accumulate={parts} micro-batches")


def flatten(config: Config) -> dict[str, Any]:
    """{"optim.lr": 1e-3, ...}: every leaf under its dotted name."""
    return dict(rows.entries(config))


def difference(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """{dotted key: (old value, new value)} for every key that differs; None if a side lacks the key."""
    a, b = flatten(old), flatten(new)
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def may_change(key: str, config: Config) -> bool:
    """Whether a dotted key may change in an existing workdir, that is, is marked RESUME."""
    return key in rows.marked(_rows(config), RESUME)


def may_differ(key: str, config: Config) -> bool:
    """Whether a dotted key of the model or the objective may differ from the run that this one is warm-started from."""
    return key in rows.marked(_rows(config), RESUME, STAGE)


def to_json(config: Config) -> str:
    return json.dumps(config.to_dict(), indent=2) + "\n"


def from_json(text: str) -> Config:
    """The inverse of `to_json`. Keys added since the text was written get their defaults, which preserve the old behaviour."""
    return base(**json.loads(text))


def from_tree(tree: Any, place: str) -> Config:
    """The configuration in a parsed JSON file, as for `from_json`. Raises UserError, naming the `place`, if it is invalid."""
    if not isinstance(tree, Mapping):
        raise UserError(f"{place}: a {type(tree).__name__}, not the keys of a configuration")
    try:
        config = base(**tree)
        check(config)
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    except RecursionError as error:
        raise UserError(f"{place}: nested too deeply for a configuration") from error
    return config


def _rows(config: Config) -> dict[str, str]:
    """The row of each section."""
    return {section: config[section].name for section in TABLES}


def _row_keys(changes: Mapping[str, Any]) -> list[str]:
    """The dotted names of row keys set by nested changes."""
    sections = {section: changes[section] for section in TABLES if isinstance(changes.get(section), Mapping)}
    return [f"{section}.{key}" for section, found in sections.items() for key in found]


def _locked(tree: Mapping[str, Any], kept: Collection[str]) -> Config:
    """kept: the dotted keys recorded for `chosen`. An attribute, not a key, so that configurations with the same values are equal."""
    made = ConfigDict(tree, convert_dict=True).lock()
    object.__setattr__(made, CHOSEN, frozenset(kept))
    return made
