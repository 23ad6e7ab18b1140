"""Device metrics as plain numbers."""

from collections.abc import Mapping
from typing import Any

import jax

from tinygen.objectives.base import Objective


def finalise(metrics: Mapping[str, Any], objective: Objective) -> dict[str, float]:
    """Device metrics as floats: the means of (sum, weight) pairs with positive weight, and the objective's derived metrics."""
    fetched = jax.device_get(dict(metrics))
    pairs = {name: value if isinstance(value, tuple) else (value, 1.0) for name, value in fetched.items()}
    means = {name: float(total) / float(weight) for name, (total, weight) in pairs.items() if weight > 0}
    return {**means, **objective.derived(means)}
