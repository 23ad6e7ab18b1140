"""Streaming mean and covariance of features, in float64."""

import dataclasses

import numpy as np

from tinygen.errors import UserError

BLOCK = 1024  # rows converted to float64 at a time


@dataclasses.dataclass
class Moments:
    """The first two moments of some rows, independent of their batching up to rounding."""

    count: int  # rows
    mean: np.ndarray  # float64 [D]
    scatter: np.ndarray  # float64 [D, D], Σ (x - mean)(x - mean)ᵀ

    @classmethod
    def empty(cls, dim: int) -> "Moments":
        return cls(0, np.zeros(dim), np.zeros((dim, dim)))

    def add(self, features: np.ndarray, first: int | None = None) -> None:
        """Adds rows [B, D] of any float dtype, in place.

        first: the index of the first row in error messages; None = continue counting
        Raises UserError for non-finite features, naming the row.
        """
        check_finite(features, self.count if first is None else first)
        for start in range(0, len(features), BLOCK):
            x = np.asarray(features[start : start + BLOCK], np.float64)
            mean = x.mean(0)
            whole = self.merge(Moments(len(x), mean, (x - mean).T @ (x - mean)))
            self.count, self.mean, self.scatter = whole.count, whole.mean, whole.scatter

    def merge(self, other: "Moments") -> "Moments":
        """The moments of the rows of both, which must be disjoint (Chan, Golub & LeVeque 1983, equation 2.1)."""
        total = self.count + other.count
        if not total:
            return Moments.empty(len(self.mean))
        away = other.mean - self.mean
        between = np.outer(away, away) * (self.count * other.count / total)
        return Moments(total, self.mean + away * (other.count / total), self.scatter + other.scatter + between)

    @property
    def covariance(self) -> np.ndarray:
        """float64 [D, D], divided by count - 1 like np.cov. Raises UserError for fewer than two rows."""
        if self.count < 2:
            raise UserError(f"a covariance needs 2 images or more, and there {'is 1' if self.count else 'are none'}")
        return self.scatter / (self.count - 1)


def moments_of(features: np.ndarray, rows: np.ndarray | None = None) -> Moments:
    """The moments of features [N, D], which may be memory-mapped, or of their `rows` [n]."""
    moments = Moments.empty(features.shape[1])
    for start in range(0, len(features) if rows is None else len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        moments.add(features[block] if rows is None else features[rows[block]], first=start)
    return moments


def check_finite(features: np.ndarray, first: int = 0) -> None:
    """Raises UserError for rows [B, D] with NaN or infinity; `first` is the index of the first row."""
    for start in range(0, len(features), BLOCK):
        finite = np.isfinite(features[start : start + BLOCK])
        if not finite.all():
            row = int(np.argmin(finite.all(1)))
            raise UserError(
                f"the features of image {first + start + row} (counted from 0) are not finite: {np.sum(~finite[row])} of {finite.shape[1]} "
                "are NaN or infinite. Are the network's weights intact, and the image's pixels finite?"
            )
