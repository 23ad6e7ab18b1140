"""The log line of a step, with the most important values. metrics.jsonl and TensorBoard have all of them."""

import datetime
import re
from collections.abc import Iterator, Mapping

HELD_OUT = "eval_ema_"  # prefix of metrics of the averaged weights
MEASURES = {  # held-out metrics that are shown, if the objective has them
    "loss": "loss",
    "velocity_loss": "velocity loss",
    "bits_per_byte": "bits per byte",
    "accuracy": "accuracy",
    "psnr": "PSNR",
    "code_use": "code use",
}
SCORE = re.compile(r"(?:fid|kid|fd|kd|precision|recall|density|coverage|is)(?:_.+)?")  # names of scores, with the feature extractor
SPREADS = ("_stderr", "_std", "_infinity")  # suffixes of metrics that belong to a score


def log_line(step: int, steps: int, values: Mapping[str, float], speed: str, seconds_left: float | None) -> str:
    """One log line.

    values: the step's values in metrics.jsonl
    speed: "" if unknown
    seconds_left: until the last step; None if unknown

    >>> log_line(500, 2000, {"loss": 0.18342, "lr": 1e-3, "eval_ema_loss": 0.179, "eval_loss": 0.181}, "28.1 steps/s", 53.4)
    'step 500/2,000: loss 0.1834, held-out loss 0.179, 28.1 steps/s, 0:00:53 left'
    """
    parts = [f"loss {values['loss']:.4g}", *_held_out(values), *([speed] if speed else [])]
    if seconds_left is not None and step < steps:
        parts.append(f"{datetime.timedelta(seconds=round(seconds_left))} left")
    return f"step {step:,}/{steps:,}: {', '.join(parts)}"


def _held_out(values: Mapping[str, float]) -> Iterator[str]:
    for name, what in MEASURES.items():
        if (value := values.get(f"{HELD_OUT}{name}")) is not None:
            yield f"held-out {what} {value:.4g}"
    for key, value in values.items():
        name = key.removeprefix(HELD_OUT)
        if name != key and SCORE.fullmatch(name) and not name.endswith(SPREADS):
            yield f"{name} {value:.4g}"
