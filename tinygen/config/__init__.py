"""A configuration: a locked ConfigDict whose keys are those of `tinygen.config.schema`, type-checked.

A recipe calls `base(...)` with what it changes and `vary(...)` for its variants:

    def get_config(variant=""):
        config = base(data=dict(name="digits"), model=dict(name="microdit", width=256), ...)
        return vary(config, variant, smoke=dict(model=dict(width=32)))
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from tinygen.config import cluster, recipes, rows
from tinygen.config.schema import RESUME, SCHEMA, STAGE, TABLES
from tinygen.config.values import merged
from tinygen.errors import UserError, unknown

CHOSEN = "_chosen"  # the attribute of a configuration that remembers what was set

Config = Any  # a locked ConfigDict, whose attributes are those of SCHEMA: more than a type checker can see


def base(**changes: Any) -> Config:
    """The default configuration with `changes` (nested dicts) made: complete, type-checked and locked.

    Raises UserError, naming the nearest known key, for one that does not exist, and for a value of another type.
    """
    sections = {name: changes.get(name, {}) for name in TABLES}
    tree = rows.defaults(SCHEMA)
    for name, section in sections.items():
        row = section.get("name", tree[name]["name"]) if isinstance(section, Mapping) else section
        tree[name] |= rows.row(name, row)
    return _locked(merged(tree, changes), _row_keys(changes))


def vary(config: Config, variant: str = "", **variants: Mapping[str, Any]) -> Config:
    """`config` with the changes of the named variants in turn, "deep+smoke"; "" changes nothing. Raises UserError for an unknown one."""
    for name in variant.split("+") if variant else ():
        if name not in variants:
            raise unknown("variant", name, variants)
        config = change(config, variants[name])
    return config


def change(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of `config` with nested `changes` made. A section given another `name` has that row's defaults, but keeps what was `chosen`
    in the old row wherever the new one takes it (`tinygen.config.schema.Mark.OWN` has the rule).
    """
    tree, kept = config.to_dict(), set(_row_keys(changes))
    for section in TABLES:
        old = tree[section]["name"]
        name = changes.get(section, {}).get("name", old)
        values = {key: tree[section][key] for key in chosen(config, section)}
        if name != old:
            common = rows.defaults(SCHEMA)[section]
            row = rows.row(section, name)
            values = rows.carried(section, old, name, values, values)
            tree[section] = {key: tree[section][key] for key in common} | {"name": name} | row | values
        kept |= {f"{section}.{key}" for key in values}
    return _locked(merged(tree, changes), kept)


def chosen(config: Config, section: str) -> list[str]:
    """The keys of a section's row that a recipe, a variant or an override has set, be it to their defaults."""
    noted = getattr(config, CHOSEN, ())
    row = rows.row(section, config[section].name)
    return [key for key, default in row.items() if f"{section}.{key}" in noted or config[section][key] != default]


def lost(old: Config, new: Config) -> dict[str, dict[str, tuple[Any, Any]]]:
    """{section: {key: (old value, new value)}} of what was chosen in `old` and is not in `new`, whose row is another; None where that row
    has no such key.
    """
    changed = [section for section in TABLES if old[section].name != new[section].name]
    pairs = {section: {key: (old[section][key], new[section].get(key)) for key in chosen(old, section)} for section in changed}
    return {section: {key: (a, b) for key, (a, b) in found.items() if a != b} for section, found in pairs.items()}


def load(spec: str) -> Config:
    """The configuration of a recipe, `NAME[:VARIANT]` or `PATH.py[:VARIANT]`. Raises UserError for whatever is none."""
    path, variant = recipes.located(spec)
    module = recipes.run(path)
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"{path} has no function get_config(variant=''): 'tinygen recipes --copy=dit_digits' writes one that has")
    config = recipes.answer(f"get_config({variant!r}) in {path}", lambda: module.get_config(variant))
    if not isinstance(config, ConfigDict) or not SCHEMA.keys() <= set(config):
        raise UserError(f"get_config() in {path} returned {type(config).__name__}, not the ConfigDict of tinygen.config.base()")
    return config


def sweep(spec: str) -> dict[str, Config]:
    """{name: configuration} of what a recipe, `NAME[:VARIANT]` or `PATH.py[:VARIANT]`, asks: itself with the changes of each entry of
    its `sweep()`, a function that gives {name: nested changes}. Entries that change nothing here, as a variant may have it, are left out.
    """
    path, _ = recipes.located(spec)
    config, module = load(spec), recipes.run(path)
    if not callable(getattr(module, "sweep", None)):
        raise UserError(f"{path} has no function sweep(), which gives {{name: changes}}, as that of convnext_mnist_imf does")
    entries = recipes.answer(f"sweep() in {path}", module.sweep)
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
    """Raises UserError for values that no run could use, whatever its model: before anything heavy is imported."""
    cluster.parse(config.distributed)
    values = flatten(config)
    for name, key in rows.known(_rows(config)).items():
        key.check(f"config.{name}", values[name])
    if config.text.tokens and config.text.embeddings:
        raise UserError(f"config.text.tokens={config.text.tokens} and config.text.embeddings={config.text.embeddings}: give one, not both")
    if config.batch_size % (parts := config.optim.accumulate):
        raise UserError(f"config.batch_size={config.batch_size} does not divide into optim.accumulate={parts} micro-batches")


def flatten(config: Config, prefix: str = "") -> dict[str, Any]:
    """{"optim.lr": 1e-3, ...}: every leaf under its dotted name."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping | ConfigDict)
        flat |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def difference(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """{dotted key: (old value, new value)} for every key that differs; None where a side lacks the key."""
    a, b = flatten(old), flatten(new)
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def may_change(key: str, config: Config) -> bool:
    """Whether a dotted key may change in an existing workdir: those marked RESUME."""
    return key in rows.marked(_rows(config), RESUME)


def may_differ(key: str, config: Config) -> bool:
    """Whether a dotted key of the model or the objective may be another than in the run whose weights this one begins from."""
    return key in rows.marked(_rows(config), RESUME, STAGE)


def to_json(config: Config) -> str:
    return json.dumps(config.to_dict(), indent=2) + "\n"


def from_json(text: str) -> Config:
    """The inverse of `to_json`. Keys added since the text was written take their defaults, which are the old behaviour."""
    return base(**json.loads(text))


def from_tree(tree: Any, place: str) -> Config:
    """The configuration that a file holds, as `from_json` takes it. Raises UserError, naming the `place`, for whatever is none."""
    if not isinstance(tree, Mapping):
        raise UserError(f"{place}: a {type(tree).__name__}, where the keys of a configuration should be")
    try:
        config = base(**tree)
        check(config)
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    except RecursionError as error:
        raise UserError(f"{place}: lists within lists, too deep to be a configuration") from error
    return config


def _rows(config: Config) -> dict[str, str]:
    """The row of each section."""
    return {section: config[section].name for section in TABLES}


def _row_keys(changes: Mapping[str, Any]) -> list[str]:
    """The dotted names of the rows' keys that nested changes set."""
    sections = {section: changes[section] for section in TABLES if isinstance(changes.get(section), Mapping)}
    return [f"{section}.{key}" for section, found in sections.items() for key in found]


def _locked(tree: Mapping[str, Any], kept: Collection[str]) -> Config:
    """kept: what `chosen` answers by, besides the values. Not a key: two configurations of the same values are equal."""
    made = ConfigDict(tree, convert_dict=True).lock()
    object.__setattr__(made, CHOSEN, frozenset(kept))
    return made
