"""A training step of a language model in tokens per second, against the same network in PyTorch."""

import contextlib
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import ours, peer, turns
from tinygen import config as config_lib
from tinygen.config import Config
from tinygen.data.codec import Codec, Field
from tinygen.data.text.prompt import Prompt
from tinygen.errors import UserError
from tinygen.media import Text
from tinygen.media.vocabulary import Vocabulary
from tinygen.nn.feed_forward import swiglu_hidden

WORKER = Path(__file__).resolve().parents[1] / "bench_gpt_peer.py"
# The components of the peer.
PLAIN = dict(positions="learned", feed_forward="gelu", kv_heads=0, tied=True, qk_norm=False, dropout=0.0)


def codec_of(vocabulary: int, length: int) -> Codec:
    """A codec of windows of arbitrary tokens."""
    words = Vocabulary(kind="characters", characters="".join(chr(2**16 + number) for number in range(vocabulary - 257)))
    field = Field(shape=(length,), dtype="int32", low=0, high=words.end)
    segment = Field(shape=(length,), dtype="int32", low=1, high=1)
    return Codec(medium=Text(words), spec={"tokens": field, "target": field, "segment": segment}, conditions=(Prompt(words),))


def measure(recipe: str, settings: Sequence[str], vocabulary: int, rounds: int, python: str, modes: Sequence[str], patience: float) -> str:
    """A table of the recipe's model and of the same with the peer's components, in three precisions, and of the peer.

    python: the peer's interpreter, which has torch; "" = no peer
    """
    config = load_recipe(recipe, settings)
    codec = codec_of(vocabulary, config.data.length)
    tokens = config.batch_size * config.data.length
    plain = config_lib.change(config, dict(model=PLAIN))
    variants = {"the recipe": config, "GPT-2's components": plain}
    contestants = {
        f"{name}, {precision}": config_lib.change(each, dict(precision=precision))
        for name, each in variants.items()
        for precision in ("float32", "bfloat16", "bfloat16_activations")
    }
    with contextlib.ExitStack() as stack:
        opponents = {}
        for mode in modes if python else ():  # first, so that missing packages are reported before compiling
            opponent = stack.enter_context(
                peer.started(python, mode, peer_options(plain, vocabulary), patience, worker=WORKER, needs="torch")
            )
            if not opponent.prepare():
                raise UserError(f"{opponent.name} takes longer than {patience:.0f} s per step (--peer_patience)")
            opponents[opponent.name] = opponent
        works = {name: ours.training_step(each, codec) for name, each in contestants.items()}
        for own in works.values():
            own.run()  # warm up
        racing = {name: turns.timed(own.run) for name, own in works.items()} | {name: each.turn for name, each in opponents.items()}
        parameters = {name: own.parameters for name, own in works.items()}
        parameters |= {name: (each.facts or {})["parameters"] for name, each in opponents.items()}
        seconds = dict(zip(racing, turns.take(list(racing.values()), rounds), strict=True))
    wide = max(map(len, racing))
    lines = [
        f"batch of {config.batch_size} windows of {config.data.length} tokens, vocabulary {vocabulary:,}; medians of {rounds} rounds",
        f"{'':<{wide}}  parameters ms per step   tokens/s" + "".join(f"  vs {name}" for name in opponents),
    ]
    for name, own in seconds.items():
        ratios = "".join(f"  {turns.ratio(own, seconds[other]):{len(other) + 2}.2f}x" for other in opponents)
        median = statistics.median(own)
        lines.append(f"{name:<{wide}}  {parameters[name]:>10,} {1000 * median:11.1f} {tokens / median:10,.0f}{ratios}")
    return "\n".join(lines)


def load_recipe(recipe: str, settings: Sequence[str]) -> Config:
    """The configuration of a language model's recipe. Raises UserError for other recipes."""
    config = ours.override(config_lib.load(recipe), settings)
    if config.model.name != "minigpt" or "length" not in config.data:
        raise UserError(f"{recipe} is not a recipe of a language model: it trains {config.model.name!r} on {config.data.name!r}")
    return config


def peer_options(config: Config, vocabulary: int) -> dict[str, Any]:
    """The flags of `bench_gpt_peer.py`."""
    sizes = {name: config.model[name] for name in ("width", "depth", "heads")}
    hidden = swiglu_hidden(config.model.width, 1.5 * config.model.mlp_ratio, config.model.mlp_multiple)  # as MiniGPT rounds it
    return dict(**sizes, hidden=hidden, vocabulary=vocabulary, length=config.data.length, batch_size=config.batch_size)
