"""The table of scores: what each needs and how it is computed."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tinygen.errors import UserError, unknown
from tinygen.evaluation.features.network import Network
from tinygen.evaluation.metrics import frechet, frechet_error, inception_score, kid, neighbours
from tinygen.evaluation.metrics.moments import moments_of

NEIGHBOURS = 10_000  # at most this many pictures per side, for precision, recall, density and coverage
NOTE = "note"  # field of a score's record: why a distance is not an FID or not reliable


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two sets of pictures that a score compares."""

    name: str
    num: int  # of pictures; 0 if unknown (statistics from elsewhere)
    fingerprint: str
    mean: np.ndarray  # float64 [D]
    covariance: np.ndarray  # float64 [D, D]
    features: np.ndarray | None = None  # float32 [N, D], if a score needs them
    logits: np.ndarray | None = None  # float32 [N, K], if a score needs them


class Score(NamedTuple):
    """How a score is computed, (samples, reference, network) -> {name: value}; checkpoints are ranked by the first value."""

    compute: Callable[[Side, Side, Network], dict[str, float]]
    needs: tuple[str, ...]  # "pictures" = features of the reference, not only its moments; "logits" = logits of the samples
    fewest: int  # samples and, if it needs "pictures", reference pictures
    first: str  # the short name of the first value, see `named`
    sign: int  # 1 if less is better, -1 if more is


def chosen(names: Sequence[str], network: Callable[[], Network], option: str, known: Mapping[str, Score] | None = None) -> dict[str, Score]:
    """The scores of those names, in that order.

    network: returns the feature network; called only if needed
    known: the table; None = SCORES
    Raises UserError for an unknown score, and for one that the network cannot compute.
    """
    known = known or SCORES
    for name in names:
        if name not in known:
            raise unknown(option, name, known)
        if name == "is" and network().name != "inception":
            raise UserError(f"{option}={name}: the Inception Score is one of Inception's classes; {network().name} has others")
    if not names:
        raise UserError(f"{option}: name at least one of {', '.join(known)}")
    return {name: known[name] for name in names}


def shortage(wanted: Mapping[str, Score], num: int, *, reference: bool = False) -> str:
    """Why so few samples, or reference pictures, are too few; "" if they are enough."""
    fewest = {name: each.fewest for name, each in wanted.items() if not reference or "pictures" in each.needs}
    name = max(fewest, key=fewest.__getitem__, default="")
    return f"{name} needs {fewest[name]} pictures at least" if name and num < fewest[name] else ""


def rules(num: int, num_reference: int) -> str:
    """The parameters of all scores for these numbers of pictures, for the protocol; independent of which scores are requested.

    num_reference: 0 if the reference is only a mean and a covariance
    """
    other = num_reference or num
    return (
        f"kid of {kid.SUBSETS} subsets of {kid.subset_size(num, other)}, pr of {neighbours.OF_RECALL} and dc of {neighbours.OF_COVERAGE}"
        f" neighbours among {min(num, NEIGHBOURS)} samples and {min(other, NEIGHBOURS)} of the reference,"
        f" is of {inception_score.SPLITS} splits of {num // inception_score.SPLITS} or one more"
    )


def named(score: str, network: Network, full_rank: bool = True) -> str:
    """A score's name in files: "fid" and "kid" for Inception's public weights, "fd_..." and "kd_..." for other features.

    full_rank: both sides have more pictures than features; otherwise a Fréchet distance is not "fid" but "fd_inception"
    """
    distance = network.distance.lower().replace("-", "_")
    if score == "fd":
        return distance if full_rank or distance != "fid" else "fd_inception"
    if score == "kid":
        return distance.replace("f", "k", 1)
    return score if network.distance == "FID" else f"{score}_{distance.removeprefix('fd_')}"


def note(num: int, num_reference: int, network: Network) -> str:
    """Why a Fréchet distance is not an FID or not reliable; "" if it is both."""
    found = ["unknown weights"] if network.name == "inception" and network.distance != "FID" else []
    for side, count in (("samples", num), ("reference pictures", num_reference)):
        if 0 < count <= network.dim:
            found.append(f"{count:,} {side} for {network.dim:,} features: far too large")
    return "; ".join(found)


def fd(samples: Side, reference: Side, network: Network, *, error: bool = True) -> dict[str, float]:
    """The Fréchet distance and, given enough samples, its standard error and its extrapolation to infinitely many samples."""
    distance = frechet.distance_from(reference.mean, reference.covariance)
    name = named("fd", network, full_rank=min(samples.num, reference.num or samples.num) > network.dim)
    given = {name: distance(samples.mean, samples.covariance)}
    if error and samples.num >= frechet_error.enough(network.dim):
        given[f"{name}_stderr"] = frechet_error.standard_error(features(samples), distance)
        given[f"{name}_infinity"] = frechet.extrapolated(features(samples), distance).distance
    return given


def kernel(samples: Side, reference: Side, network: Network) -> dict[str, float]:
    mean, spread = kid.kid(features(samples), features(reference))
    return {named("kid", network): mean, f"{named('kid', network)}_std": spread}


def precision_recall(samples: Side, reference: Side, network: Network) -> dict[str, float]:
    precision, recall = neighbours.precision_recall(some(samples), some(reference))
    return {named("precision", network): precision, named("recall", network): recall}


def density_coverage(samples: Side, reference: Side, network: Network) -> dict[str, float]:
    density, coverage = neighbours.density_coverage(some(samples), some(reference))
    return {named("density", network): density, named("coverage", network): coverage}


def inception(samples: Side, reference: Side, network: Network) -> dict[str, float]:
    assert samples.logits is not None
    mean, spread = inception_score.inception_score(samples.logits)
    return {named("is", network): mean, f"{named('is', network)}_std": spread}


def features(side: Side) -> np.ndarray:
    if side.features is None:
        raise UserError(f"{side.name} holds only a mean and a covariance: kid, pr and dc need pictures to compare with")
    return side.features


def some(side: Side) -> np.ndarray:
    """The features of NEIGHBOURS random pictures: pictures may be sorted by class."""
    rows = features(side)
    return rows if len(rows) <= NEIGHBOURS else rows[np.sort(np.random.default_rng(0).permutation(len(rows))[:NEIGHBOURS])]


def side_of(name: str, fingerprint: str, rows: np.ndarray, logits: np.ndarray | None = None) -> Side:
    """The side whose features are `rows`."""
    moments = moments_of(rows)
    return Side(name, len(rows), fingerprint, moments.mean, moments.covariance, rows, logits)


SCORES: Mapping[str, Score] = {
    "fd": Score(fd, (), 2, "fd", 1),
    "kid": Score(kernel, ("pictures",), kid.FEWEST, "kid", 1),
    "pr": Score(precision_recall, ("pictures",), neighbours.OF_RECALL + 1, "precision", -1),
    "dc": Score(density_coverage, ("pictures",), neighbours.OF_COVERAGE + 1, "density", -1),
    "is": Score(inception, ("logits",), inception_score.FEWEST, "is", -1),
}

# During training, without the standard error: it takes longer than the score.
DURING = {**SCORES, "fd": SCORES["fd"]._replace(compute=functools.partial(fd, error=False))}
