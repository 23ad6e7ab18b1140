"""The plan of a comparison, checked before training: arms, which are trained, and rows, ways of sampling them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tinygen import build
from tinygen import config as config_lib
from tinygen.cli import main as cli
from tinygen.cli.flags import DENOISING
from tinygen.config import Config
from tinygen.errors import UserError, unknown

SETTINGS = tuple(name for name in DENOISING if name != "nfe")


class Arm(NamedTuple):
    """A recipe to train, and its configuration."""

    name: str
    recipe: str
    config: Config


class Row(NamedTuple):
    """A way of sampling an arm.

    settings: sampler settings that replace those of the recipe
    faults: {nfe: why the arm cannot sample with it, or ""}
    """

    arm: Arm
    settings: dict[str, Any]
    faults: dict[int, str]

    @property
    def words(self) -> list[str]:
        """["sampler=euler", "guidance=1"]."""
        return [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in self.settings.items()]

    @property
    def name(self) -> str:
        return ", ".join([self.arm.name, *self.words])


def arms_of(words: Sequence[str], overrides: list[str]) -> list[Arm]:
    """The arms of NAME=RECIPE. Raises UserError for invalid or repeated ones, and for recipes without `nfe` or of other data."""
    arms: dict[str, Arm] = {}
    for word in words:
        name, _, recipe = word.partition("=")
        if not name or not recipe or set(name) & set("/:"):
            raise UserError(f"--arm={word}: expected NAME=RECIPE, with no / or : in the name")
        if name in arms:
            raise UserError(f"--arm={word}: the name {name} is already used")
        arms[name] = Arm(name, recipe, cli.configured(recipe, overrides)[0])
        objective, data = arms[name].config.objective, arms[name].config.data
        if "nfe" not in objective:
            raise UserError(f"--arm={word}: objective {objective.name!r} has no number of network evaluations (nfe)")
        if data != next(iter(arms.values())).config.data:
            raise UserError(f"--arm={word}: its section `data` differs from that of the first arm")
    return list(arms.values())


def rows_of(arms: Sequence[Arm], sampling: Sequence[str], nfes: Sequence[int]) -> list[Row]:
    """The rows of all arms. Raises UserError for settings that an arm lacks, and for rows without any possible cell."""
    chosen: dict[str, list[str]] = {arm.name: [] for arm in arms}
    for word in sampling:
        name, colon, settings = word.partition(":")
        if not colon:
            raise UserError(f"--sampling={word}: expected NAME:KEY=VALUE, for example {arms[0].name}:sampler=euler")
        if name not in chosen:
            raise unknown(f"arm in --sampling={word}:", name, chosen)
        chosen[name].append(settings)
    rows = []
    for arm in arms:
        for settings in [settings_of(words, arm.config) for words in chosen[arm.name] or [""]]:
            rows.append(Row(arm, settings, {nfe: fault(arm.config, settings, nfe) for nfe in nfes}))
            if all(rows[-1].faults.values()):
                raise UserError(f"{rows[-1].name} cannot sample with any of --nfe: {rows[-1].faults[nfes[-1]]}")
    return rows


def settings_of(words: str, config: Config) -> dict[str, Any]:
    """{"sampler": "euler", "guidance": 1.0} of "sampler=euler,guidance=1". Raises UserError for unknown settings."""
    found: dict[str, Any] = {}
    for word in filter(None, words.split(",")):
        name, _, value = word.partition("=")
        if name not in SETTINGS:
            raise unknown("sampler setting", name, SETTINGS)
        if name not in config.objective:
            raise UserError(f"{word}: objective {config.objective.name!r} has no such setting")
        try:
            found[name] = type(config.objective[name])(value)
        except ValueError as error:
            raise UserError(f"{word}: {name} must be a number") from error
    return found


def fault(config: Config, settings: Mapping[str, Any], nfe: int) -> str:
    """Why a recipe's objective cannot sample with these settings; "" if it can."""
    keywords = config_lib.change(config, {"objective": {**settings, "nfe": nfe}}).objective.to_dict()
    try:
        build.OBJECTIVES[keywords.pop("name")](**keywords, shape=(1,))
    except UserError as error:
        return str(error).splitlines()[0]
    return ""
