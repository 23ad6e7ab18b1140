"""Names of a model's variables, as used in sharding rules, checkpoints and reports."""

from collections.abc import Sequence
from typing import Any

BRANCHES = {"params": 1, "ema": 1, "buffers": 1, "opt_state": 3}  # of the state: path components before a variable's own name


def path_name(path: Sequence[Any]) -> str:
    """ "params/blocks/0/attention/qkv/kernel" for the key path of a leaf."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def variable_name(path: str) -> str:
    """ "blocks/0/query/kernel" for the paths of a parameter, of its average (ema/...) and of its moments (opt_state/adam/mu/...)."""
    names = path.split("/")
    return "/".join(names[BRANCHES.get(names[0], 0) :])
