"""A training step of a language model: tokens a second, beside the same network in PyTorch."""

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
PLAIN = dict(positions="learned", feed_forward="gelu", kv_heads=0, tied=True, qk_norm=False, dropout=0.0)  # what the peer is
PRECISIONS = {"eager": "float32", "compile": "float32", "bf16": "bfloat16", "compile_bf16": "bfloat16"}


def codec_of(vocabulary: int, length: int) -> Codec:
    """Of tokens that could be any."""
    words = Vocabulary(kind="characters", characters="".join(chr(2**16 + number) for number in range(vocabulary - 257)))
    field = Field(shape=(length,), dtype="int32", low=0, high=words.end)
    segment = Field(shape=(length,), dtype="int32", low=1, high=1)
    return Codec(medium=Text(words), spec={"tokens": field, "target": field, "segment": segment}, conditions=(Prompt(words),))


def measure(recipe: str, settings: Sequence[str], vocabulary: int, rounds: int, python: str, modes: Sequence[str], patience: float) -> str:
    """A table. Ours are the recipe's model as it is and as the peer has it, each in three precisions.

    python: an interpreter that has torch, for the peer; "" = none
    """
    config = loaded(recipe, settings)
    codec = codec_of(vocabulary, config.data.length)
    tokens = config.batch_size * config.data.length
    plain = config_lib.change(config, dict(model=PLAIN))
    variants = {"as the recipe has it": config, "GPT-2's parts": plain}
    contestants = {
        f"{name}, {precision}": config_lib.change(each, dict(precision=precision))
        for name, each in variants.items()
        for precision in ("float32", "bfloat16", "bfloat16_activations")
    }
    with contextlib.ExitStack() as stack:
        opponents = {}
        for mode in modes if python else ():  # first: what they lack is known before ours is compiled
            opponent = stack.enter_context(
                peer.started(python, mode, peer_options(plain, vocabulary), patience, worker=WORKER, needs="torch")
            )
            if not opponent.prepare():
                raise UserError(f"{opponent.name} takes longer than {patience:.0f} s a step (--peer_patience)")
            opponents[opponent.name] = opponent
        works = {name: ours.training_step(each, codec) for name, each in contestants.items()}
        for own in works.values():
            own.run()  # the first one touches its memory
        racing = {name: turns.timed(own.run) for name, own in works.items()} | {name: each.turn for name, each in opponents.items()}
        parameters = {name: own.parameters for name, own in works.items()}
        parameters |= {name: (each.facts or {})["parameters"] for name, each in opponents.items()}
        seconds = dict(zip(racing, turns.take(list(racing.values()), rounds), strict=True))
    wide = max(map(len, racing))
    lines = [
        f"batch {config.batch_size} of {config.data.length} tokens, of {vocabulary:,}; medians of {rounds} rounds",
        f"{'':<{wide}}  parameters   ms a step   tokens/s" + "".join(f"  to {name}" for name in opponents),
    ]
    for name, own in seconds.items():
        beside = "".join(f"  {turns.ratio(own, seconds[other]):{len(other) + 2}.2f}x" for other in opponents)
        middle = statistics.median(own)
        lines.append(f"{name:<{wide}}  {parameters[name]:>10,} {1000 * middle:11.1f} {tokens / middle:10,.0f}{beside}")
    return "\n".join(lines)


def loaded(recipe: str, settings: Sequence[str]) -> Config:
    """A recipe of a language model. Raises UserError for another one."""
    config = ours.changed(config_lib.load(recipe), settings)
    if config.model.name != "minigpt" or "length" not in config.data:
        raise UserError(f"{recipe} is no language model's recipe: its model is {config.model.name!r} on {config.data.name!r}")
    return config


def peer_options(config: Config, vocabulary: int) -> dict[str, Any]:
    """The arguments of `bench_gpt_peer.py`."""
    sizes = {name: config.model[name] for name in ("width", "depth", "heads")}
    hidden = swiglu_hidden(config.model.width, 1.5 * config.model.mlp_ratio, config.model.mlp_multiple)  # as MiniGPT rounds it
    return dict(**sizes, hidden=hidden, vocabulary=vocabulary, length=config.data.length, batch_size=config.batch_size)
