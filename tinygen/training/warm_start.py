"""What another run's weights may be the beginning of: equal shapes do not make them the weights of this model."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from absl import logging

from tinygen import config as config_lib
from tinygen.checkpoints.store import Saved, find
from tinygen.config import Config
from tinygen.data.captions.embeddings import Embedded
from tinygen.data.captions.tokenizer import Text
from tinygen.data.codec import Codec
from tinygen.data.latents.provenance import Latents
from tinygen.data.text.vocabulary import Vocabulary
from tinygen.errors import UserError

CURE = "or take the arrays that fit all the same: --config.init.partial=True"
MOST = 6  # differences that a message names


def words(config: Config) -> Text | Embedded | Vocabulary | None:
    """How the run that config.init.ckpt names has read its text; None without one, or without text."""
    if not (config.init.ckpt and reads(config)):
        return None
    return find(config.init.ckpt, option="config.init.ckpt").codec.words


def reads(config: Config) -> bool:
    """Whether text becomes tokens, as captions or as what is learnt itself: those of before go on to mean the same."""
    return bool(config.text.tokens or "tokenizer" in config.data)


def check_model(config: Config, saved: Saved) -> None:
    """Raises UserError where a key of the model or the objective gives the saved weights another meaning, unless config.init.partial says
    that some may have one. The keys that may differ are marked in `tinygen.config.schema`.
    """
    found: list[str] = []
    for section in ("model", "objective"):
        old, new = saved.config[section], config[section]
        changes = {"name": (old.name, new.name)} if old.name != new.name else config_lib.difference(old, new)
        keys = {f"{section}.{key}": values for key, values in changes.items()}
        found += [f"{key}: {a!r} -> {b!r}" for key, (a, b) in keys.items() if not config_lib.may_differ(key, config)]
    _refuse(config, "another model", found, "Give the same values")


def check_data(config: Config, codec: Codec, saved: Saved) -> None:
    """Raises UserError where examples or labels are others than the saved weights know, and where positions of images of another size
    are not interpolated; unless config.init.partial says that this may be.
    """
    old, new = saved.codec, codec
    found = [f"kind: {old.kind!r} -> {new.kind!r}"] if old.kind != new.kind else []
    found += _labels(old.labels, new.labels)
    if isinstance(old.text, Embedded) and isinstance(new.text, Embedded) and old.text.sha256 != new.text.sha256:
        found.append(f"text encoder: {old.text.encoder} -> {new.text.encoder}")
    if old.vocabulary is not None and new.vocabulary is not None:
        found += (others := _vocabularies(old.vocabulary, new.vocabulary))
        if others and config.init.partial:
            logging.warning("config.init.partial: %s. Rows of an embedding that fits are those of other tokens", others[0])
    for name in sorted((old.spec.keys() | new.spec.keys()) - {"label"}):
        a, b = (_field(codec, name, config.model.get("positions") == "rope") for codec in (old, new))
        if a != b:
            different = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
            found += [f"{key} of {name}: {a.get(key)} -> {b.get(key)}" for key in different]
    if old.latents is not None and new.latents is not None:
        found += _latents(old.latents, new.latents)
    _refuse(config, "other data", found, "Give data as they were")
    if new.kind == "image" and not config.init.partial:
        _check_positions(config, new.spec["x"].shape[:2], saved.config, old.spec["x"].shape[:2])


def _refuse(config: Config, what: str, found: Sequence[str], cure: str) -> None:
    if found and not config.init.partial:
        shown = "; ".join(found[:MOST]) + (f"; and {len(found) - MOST} more" if len(found) > MOST else "")
        raise UserError(f"config.init.ckpt={config.init.ckpt} is a run of {what} (its -> this run's): {shown}.\n{cure}, {CURE}")


def _latents(old: Latents, new: Latents) -> list[str]:
    """The autoencoder, and what brings its latents to a model's scale: equal numbers mean the same only where both are equal."""
    if old.sha256 != new.sha256:
        return [f"autoencoder: {old.name} (sha256 {old.sha256[:16]}) -> {new.name} ({new.sha256[:16]})"]
    if (old.scale, old.shift) != (new.scale, new.shift):
        return [
            f"scale of latents: {old.scale:.6g} -> {new.scale:.6g} (scripts/prepare/prepare_latents.py --like=DIR takes the first stage's)"
        ]
    return []


def _labels(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Their number and the first that differs."""
    number = [f"labels: {len(old)} -> {len(new)}"] if len(old) != len(new) else []
    pairs = enumerate(itertools.zip_longest(old, new))
    return number + next(([f"label {index}: {a!r} -> {b!r}"] for index, (a, b) in pairs if a != b), [])


def _vocabularies(old: Vocabulary, new: Vocabulary) -> list[str]:
    """Their kinds and sizes, and where these are equal the first token that differs."""
    if old == new:
        return []
    if str(old) != str(new):
        return [f"vocabulary: {old} -> {new}"]
    token = next((token for token in range(old.end) if old.bytes_of([token]) != new.bytes_of([token])), None)
    which = "its merges" if token is None else f"token {token}: {old.decode([token])!r} -> {new.decode([token])!r}"
    return [f"vocabulary: {old}, of which {which}"]


def _field(codec: Codec, name: str, rotary: bool) -> dict[str, Any]:
    """What an array holds, without the sides of an image, and without the length of a window whose positions are no weights."""
    if name not in codec.spec:
        return {}
    field = dataclasses.asdict(codec.spec[name])
    if codec.kind == "text" and rotary:
        return field | {"shape": (), "high": None if name == "segment" else field["high"]}
    return field | {"shape": field["shape"][2:]} if codec.kind == "image" and name == "x" else field


def _check_positions(config: Config, sides: Sequence[int], old_config: Config, old_sides: Sequence[int]) -> None:
    """sides: height and width."""
    (height, width), (old_height, old_width) = sides, old_sides
    others = f"config.init.ckpt={config.init.ckpt}: the images are {height}x{width} where the checkpoint's were {old_height}x{old_width}"
    same = tuple(sides) == tuple(old_sides)
    if "position_grid" not in config.model:
        if not same:
            raise UserError(f"{others}, and model {config.model.name!r} has no positions to interpolate.\nGive that size, {CURE}")
        return
    if height * old_width != width * old_height:
        raise UserError(f"{others}, which is no multiple in both directions.\nGive images of those proportions, {CURE}")
    patch, old_patch = config.model.patch, old_config.model.patch
    if not same and (height % patch or old_height % old_patch or width % patch or old_width % old_patch):
        raise UserError(f"{others}, and their patches do not divide both: positions are not interpolated.\nGive that size, {CURE}")
    span = old_config.model.position_grid or -(-old_height // old_patch)
    if span != (config.model.position_grid or -(-height // patch)):
        given = f"config.model.position_grid={config.model.position_grid}: positions span {span} rows of patches in {config.init.ckpt}"
        cure = f"--config.model.position_grid={span}"
        raise UserError(f"{given}: {cure}" if same else f"{others}: {cure} interpolates their positions")
