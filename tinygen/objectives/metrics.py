"""From what the device has added up to numbers that people read."""

from collections.abc import Mapping
from typing import Any

import jax


def finalise(metrics: Mapping[str, Any], objective: Any) -> dict[str, float]:
    """Device metrics as floats: (sum, weight) pairs divided, those of no weight left out; then those that the objective derives from these.

    objective: its `derived(means)`, where it has one, gives metrics that are no means, such as the perplexity; any mean may be missing
    """
    fetched = jax.device_get(dict(metrics))
    pairs = {name: value if isinstance(value, tuple) else (value, 1.0) for name, value in fetched.items()}
    means = {name: float(total) / float(weight) for name, (total, weight) in pairs.items() if weight > 0}
    return {**means, **objective.derived(means)} if hasattr(objective, "derived") else means
