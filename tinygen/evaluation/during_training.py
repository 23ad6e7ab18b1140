"""Scores of samples during training, with the same noise, labels and reference every time."""

import functools
import itertools
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tinygen import build
from tinygen.config import Config
from tinygen.data.source import DataSource
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.evaluation.features import load
from tinygen.evaluation.features.collecting import Unwanted, collected
from tinygen.evaluation.features.extraction import Extractor, extract, extractor
from tinygen.evaluation.features.network import Network
from tinygen.evaluation.generated import check_draws_pictures, conditions, of_model
from tinygen.evaluation.images import of_split
from tinygen.evaluation.metrics.frechet import too_few
from tinygen.evaluation.scores import DURING, Score, Side, chosen, shortage, side_of
from tinygen.pretrained.latents import originals
from tinygen.sampling import draw
from tinygen.train_step import TrainState, Tree


class Scored(NamedTuple):
    """values: by name, for metrics.jsonl. rank: the first score of the averaged weights, signed so that less is better"""

    values: dict[str, float]
    rank: float


AVERAGED = "eval_ema_"  # prefix of scores of the averaged weights; those of the raw weights have eval_


def scored_network(config: Config) -> tuple[Network, dict[str, Score]]:
    """The feature network and the scores that config.eval names. Raises UserError for unknown or missing ones."""
    keys = config.eval
    network = functools.partial(_network, keys.features, keys.preset if keys.features == "inception" else None, keys.weights or None)
    return network(), chosen([name.strip() for name in keys.scores.split(",")], network, "config.eval.scores", DURING)


@functools.lru_cache(maxsize=1)
def _network(features: str, preset: str | None, weights: str | None) -> Network:
    """Read once, at the start, when a run can still be refused."""
    return load.load(features, preset=preset, weights=weights, option="config.eval.features")


def check_scoring(config: Config, source: DataSource, parts: build.Parts) -> None:
    """Raises UserError for scores that cannot be computed for this run."""
    if config.eval.every:
        check_draws_pictures(parts, config.objective.name)
        network, scores = scored_network(config)
        compared = compared_with(source)
        for key, num in {"num": config.eval.num, "split": len(compared.splits[config.eval.split])}.items():
            if problem := shortage(scores, num, reference=key == "split"):
                raise UserError(f"config.eval.{key}={config.eval[key]}: {problem}, and there are {num}")
            if "fd" in scores and (problem := too_few(num, network.dim)):
                raise UserError(f"config.eval.{key}={config.eval[key]}: {problem}.\nTake more, or another score: --config.eval.scores=kid")


def compared_with(source: DataSource) -> DataSource:
    """The data, or the images behind latents."""
    return originals(source.codec.domain, "Restore them, or turn scores off: --config.eval.every=0.") or source


def make_scoring(
    config: Config, source: DataSource, parts: build.Parts, unwanted: Callable[[], bool] = lambda: False, few: int = 0
) -> Callable[[TrainState], Scored | None]:
    """state -> scores: `eval_ema_*` of the averaged weights and, with config.eval.raw, `eval_*`; None if interrupted.

    The first call loads the network and computes the features of the data.

    few: use at most this many samples and reference pictures; 0 = as in config.eval
    """
    keys = config.eval
    num = few or keys.num
    size = parts.layout.padded(min(num, draw.BATCH))
    step = draw.sample_step(parts, size, config.seed)
    cond, _ = conditions(parts.codec, ["data"], num, source.splits[keys.split])
    calls = itertools.count()

    @functools.cache
    def ready() -> tuple[Extractor, dict[str, Score], Side]:
        network, scores = scored_network(config)
        using = extractor(network, parts.layout)
        pictures = of_split(compared_with(source), keys.split, f"the data's split {keys.split}")
        pictures = pictures.first(few) if few else pictures
        with collected(pictures, using, "features of the data", keep=not few, reference=True, unwanted=unwanted) as reference:
            return using, scores, reference

    def one(weights: tuple[Tree, Tree]) -> dict[str, float]:
        using, scores, reference = ready()
        reads = of_model(weights, parts, cond, num=num, seed=config.seed, size=size, name="", fingerprint="", step=step).reads(0)
        rows = list(extract(reads, using, unwanted))
        if sum(len(each["features"]) for each in rows) < num:
            raise Unwanted

        def values() -> str:
            logits = np.concatenate([each["logits"] for each in rows]) if "is" in scores else None
            side = side_of("", "", np.concatenate([each["features"] for each in rows]), logits)
            found = [each.compute(side, reference, using.network) for each in scores.values()]
            return json.dumps({name: value for each in found for name, value in each.items()})

        return json.loads(processes.from_lead(f"scores_{next(calls)}", values))

    def scoring(state: TrainState) -> Scored | None:
        branches: dict[str, Tree] = {AVERAGED: state.ema} | ({"eval_": state.params} if keys.raw else {})
        try:
            found = {prefix: one((params, state.buffers)) for prefix, params in branches.items()}
        except Unwanted:
            return None
        values = {f"{prefix}{name}": value for prefix, each in found.items() for name, value in each.items()}
        first = next(iter(ready()[1].values()))
        return Scored(values, first.sign * next(iter(found[AVERAGED].values())))

    return scoring


def by(config: Config) -> str | None:
    """Fingerprint of all settings that scores of this run depend on; only equal ones compare. None if scoring is off."""
    if not config.eval.every:
        return None
    network, scores = scored_network(config)
    rules = {"features": network.name, "weights_sha256": network.sha256, "preset": network.preset, "scores": list(scores)}
    sampling = {"num": config.eval.num, "split": config.eval.split, **config.objective}
    return json.dumps({**rules, **sampling}, sort_keys=True, default=list)
