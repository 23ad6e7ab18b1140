"""Checks of a warm start: weights of equal shape may still mean something else in this model."""

from collections.abc import Sequence

from absl import logging

from tinygen import config as config_lib
from tinygen.checkpoints.store import Saved
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.errors import UserError

CURE = "or take only the arrays that fit: --config.init.partial=True"
MOST = 6  # differences listed in a message


def check_model(config: Config, saved: Saved) -> None:
    """Raises UserError if a key of the model or the objective changes the meaning of the saved weights, unless config.init.partial
    allows it. Keys that may differ are marked in `tinygen.config.schema`.
    """
    found: list[str] = []
    for section in ("model", "objective"):
        old, new = saved.config[section], config[section]
        changes = {"name": (old.name, new.name)} if old.name != new.name else config_lib.difference(old, new)
        keys = {f"{section}.{key}": values for key, values in changes.items()}
        found += [f"{key}: {a!r} -> {b!r}" for key, (a, b) in keys.items() if not config_lib.may_differ(key, config)]
    _refuse(config, "another model", found, "Give the same values")


def check_data(config: Config, codec: Codec, saved: Saved) -> None:
    """Raises UserError if examples or labels differ from those of the saved weights, or images have another size and positions are not
    interpolated; unless config.init.partial allows it.
    """
    found = codec.differences(saved.codec, rotary=config.model.get("positions") == "rope")
    if config.init.partial:
        for each in codec.medium.differences(saved.codec.medium):
            logging.warning("config.init.partial: %s. Arrays that fit are loaded, but mean something else", each)
    _refuse(config, "other data", found, "Give the same data")
    if (sides := codec.medium.positions(codec.spec)) and not config.init.partial:
        _check_positions(config, sides, saved.config, saved.codec.medium.positions(saved.codec.spec) or sides)


def _refuse(config: Config, what: str, found: Sequence[str], cure: str) -> None:
    if found and not config.init.partial:
        shown = "; ".join(found[:MOST]) + (f"; and {len(found) - MOST} more" if len(found) > MOST else "")
        raise UserError(f"config.init.ckpt={config.init.ckpt} is a run of {what} (its -> this run's): {shown}.\n{cure}, {CURE}")


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
