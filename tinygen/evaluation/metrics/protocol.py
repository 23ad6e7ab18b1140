"""The protocol of a score. Scores are comparable only if their protocols are equal."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


def fingerprint(protocol: Mapping[str, Any]) -> str:
    """12 hex digits, equal for equal protocols."""
    return hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:12]


def unlike(one: Mapping[str, Any], other: Mapping[str, Any], allowed: Sequence[str] = ()) -> list[str]:
    """The fields in which two protocols differ, "nfe: 25 and 50", except for the `allowed` ones."""
    given = [field for field in sorted(one.keys() | other.keys()) if field not in allowed]
    fields = [field for field in given if (field in one, one.get(field)) != (field in other, other.get(field))]
    return [f"{field}: {_shown(one, field)} and {_shown(other, field)}" for field in fields]


def _shown(protocol: Mapping[str, Any], field: str) -> str:
    return str(protocol[field])[:80] if field in protocol else "not given"
