"""What is compared: arms, which are trained, and rows, which are ways of sampling them. Mistakes are found here, before any training."""

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
    """A recipe that is trained, and `config`, what it says."""

    name: str
    recipe: str
    config: Config


class Row(NamedTuple):
    """A way of sampling an arm: with `settings` in place of its recipe's. faults: {nfe: why that is impossible, "" where it is not}"""

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
    """Raises UserError for what is no arm, for two of one name, and for recipes that draw nothing in steps or learn different data."""
    arms: dict[str, Arm] = {}
    for word in words:
        name, _, recipe = word.partition("=")
        if not name or not recipe or set(name) & set("/:"):
            raise UserError(f"--arm={word}: write NAME=RECIPE, with no / or : in the name")
        if name in arms:
            raise UserError(f"--arm={word}: there is an arm {name} already; give each a name of its own")
        arms[name] = Arm(name, recipe, cli.configured(recipe, overrides)[0])
        objective, data = arms[name].config.objective, arms[name].config.data
        if "nfe" not in objective:
            raise UserError(f"--arm={word}: objective {objective.name!r} draws no samples in a number of evaluations")
        if data != next(iter(arms.values())).config.data:
            raise UserError(f"--arm={word}: its section data is not that of the first arm; compare what learns the same")
    return list(arms.values())


def rows_of(arms: Sequence[Arm], sampling: Sequence[str], nfes: Sequence[int]) -> list[Row]:
    """Raises UserError for settings that an arm does not have, and for a row that would have no cell."""
    chosen: dict[str, list[str]] = {arm.name: [] for arm in arms}
    for word in sampling:
        name, colon, settings = word.partition(":")
        if not colon:
            raise UserError(f"--sampling={word}: write NAME:KEY=VALUE, for example {arms[0].name}:sampler=euler")
        if name not in chosen:
            raise unknown(f"arm in --sampling={word}:", name, chosen)
        chosen[name].append(settings)
    rows = []
    for arm in arms:
        for settings in [settings_of(words, arm.config) for words in chosen[arm.name] or [""]]:
            rows.append(Row(arm, settings, {nfe: fault(arm.config, settings, nfe) for nfe in nfes}))
            if all(rows[-1].faults.values()):
                raise UserError(f"{rows[-1].name} can sample with none of --nfe: {rows[-1].faults[nfes[-1]]}")
    return rows


def settings_of(words: str, config: Config) -> dict[str, Any]:
    """{"sampler": "euler", "guidance": 1.0} of "sampler=euler,guidance=1". Raises UserError for what the objective does not have."""
    found: dict[str, Any] = {}
    for word in filter(None, words.split(",")):
        name, _, value = word.partition("=")
        if name not in SETTINGS:
            raise unknown("setting of sampling", name, SETTINGS)
        if name not in config.objective:
            raise UserError(f"{word}: objective {config.objective.name!r} has no such setting")
        try:
            found[name] = type(config.objective[name])(value)
        except ValueError as error:
            raise UserError(f"{word}: {name} is a number") from error
    return found


def fault(config: Config, settings: Mapping[str, Any], nfe: int) -> str:
    """Why a recipe's objective cannot sample that way; "" where it can."""
    given = config_lib.change(config, {"objective": {**settings, "nfe": nfe}}).objective.to_dict()
    try:
        build.OBJECTIVES[given.pop("name")](**given, shape=(1,))
    except UserError as error:
        return str(error).splitlines()[0]
    return ""
