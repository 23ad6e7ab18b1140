"""References for scores: statistics in a file, pictures in a folder or a file, or a split of a data set."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinygen import build
from tinygen import config as config_lib
from tinygen.config.data import DATASETS
from tinygen.data.condition import Condition
from tinygen.data.examples import Examples
from tinygen.data.source import DataSource
from tinygen.errors import UserError, unknown
from tinygen.evaluation.features.network import Network
from tinygen.evaluation.images import Pictures, digest, of_folder, of_npz, of_split, reading
from tinygen.evaluation.scores import Side
from tinygen.system import npy

KEYS = (("mu", "sigma"), ("ref_mu", "ref_sigma"), ("mean", "cov"))  # in files of statistics
SPLITS = ("train", "validation")
UNNAMED = ("folder", "tfds", "latents")  # data sets that need more than a name


class Found(NamedTuple):
    """A reference: `statistics`, or `pictures` whose features are not yet computed, or both."""

    statistics: Side | None
    pictures: Pictures | None
    examples: Examples | None  # those behind the pictures, if they are a split of a data set
    conditions: tuple[Condition, ...] = ()  # of those data


def find(ref: str, network: Callable[[], Network], own: Callable[[], DataSource] | None, option: str = "--ref") -> Found:
    """The reference that `ref` names: train or validation, a split of the run's own data; a data set NAME or NAME:SPLIT; a folder of
    images; an .npz file of pictures or of statistics.

    network: returns the feature network; called only if a file may hold its statistics
    own: returns the data of the scored run, if any
    Raises UserError for anything else, and for statistics of another network.
    """
    if ref in SPLITS:
        if own is None:
            raise UserError(
                f"{option}={ref} is a split of a run's own data, and there is no run: give a folder, an .npz file or a data set"
            )
        return _of_source(own(), ref, ref)
    if os.path.isdir(ref):
        return Found(None, of_folder(ref, option), None)
    if os.path.isfile(ref):
        pictures = of_npz(ref, option)
        # Statistics beside pictures are those of ADM's evaluator (preset adm), of more pictures than the file holds.
        stated = pictures is None or (holds_statistics(ref, option) and (network().name, network().preset) == ("inception", "adm"))
        return Found(statistics(ref, network(), option) if stated else None, pictures, None)
    name, _, split = ref.partition(":")
    if name in DATASETS and name not in UNNAMED:
        if (split or "train") not in SPLITS:
            raise unknown("split", split, SPLITS)
        return _of_source(build.data_source(config_lib.base(data=dict(name=name))), split or "train", ref)
    if os.sep in ref or ref.endswith(".npz"):
        raise UserError(f"{option}={ref} is not there")
    raise unknown(option, ref, [*SPLITS, *(name for name in DATASETS if name not in UNNAMED)])


def _of_source(source: DataSource, split: str, name: str) -> Found:
    return Found(None, of_split(source, split, name), source.splits[split], source.codec.conditions)


def holds_statistics(path: str, option: str) -> bool:
    with reading(path, option), npy.Npz(path) as file:
        return _names(file) is not None


def statistics(path: str, network: Network, option: str) -> Side:
    """The mean and covariance in a file, of this network or of an unknown one.

    Shapes are checked before anything is read. Raises UserError for a file without statistics, or with invalid ones, or of another
    dimension or network.
    """
    with reading(path, option), npy.Npz(path) as file:
        names = _names(file)
        if names is None:
            held = ", ".join(file.names)[:100] or "nothing"
            raise UserError(f"{option}={path} holds {held}: neither pictures (arr_0) nor statistics (mu, sigma)")
        shapes = [file.header(name).shape for name in names]
        if shapes != [(network.dim,), (network.dim, network.dim)]:
            what = f"mean {list(shapes[0])} and covariance {list(shapes[1])}"
            raise UserError(f"{option}={path} is of another network: it holds a {what}, where {network.name} has {network.dim} features")
        mean, covariance = (file.read(name).astype(np.float64, casting="same_kind") for name in names)
        about = json.loads(file.text("about")) if "about" in file else {}
        if not isinstance(about, dict):
            raise ValueError("about is not a JSON object")
        num = 0
        if "num" in file:
            if (stated := file.header("num")).shape or stated.dtype.kind not in "iu":
                raise ValueError(f"num is {stated}, where a whole number is expected")
            num = max(0, int(file.read("num")))
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise UserError(f"{option}={path} holds numbers that are not finite")
    if not np.allclose(covariance, covariance.T, rtol=1e-5, atol=1e-8 * np.abs(covariance).max()):
        raise UserError(f"{option}={path}: its covariance is not symmetric")
    ours = {"weights_sha256": network.sha256, "preset": network.preset}
    for key, value in ours.items():
        if key in about and about[key] != value:
            raise UserError(f"{option}={path} was made with other features: {key} {str(about[key])[:80]}, here {value}")
    known = about.get("pictures_fingerprint")  # scores against the statistics equal scores against the pictures
    return Side(name=path, num=num, fingerprint=known if isinstance(known, str) else digest(path), mean=mean, covariance=covariance)


def _names(file: npy.Npz) -> tuple[str, str] | None:
    """The names of mean and covariance in a file; None if it has none."""
    return next((names for names in KEYS if all(name in file for name in names)), None)


def write_statistics(path: Path, side: Side, network: Network) -> None:
    """Writes mean and covariance as an .npz file that other tools can read. Atomic."""
    about: dict[str, Any] = {
        "network": network.name, "weights_sha256": network.sha256, "preset": network.preset, "pictures": side.name,
        "pictures_fingerprint": side.fingerprint,
    }  # fmt: skip
    fresh = path.with_name(f"{path.name}.new.npz")
    np.savez(fresh, mu=side.mean, sigma=side.covariance, num=side.num, about=json.dumps(about))
    fresh.replace(path)
