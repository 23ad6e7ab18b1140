"""Inception Score: how sure the classes of single images are, and how varied those of all (Salimans et al. 2016)."""

from typing import NamedTuple

import numpy as np

from tinygen.errors import UserError
from tinygen.evaluation.metrics.moments import check_finite

SPLITS = 10
FEWEST = 2 * SPLITS  # a split of one image has a score of 1 whatever it shows
SEED = 2020  # torch-fidelity's default


class InceptionScore(NamedTuple):
    """Mean and standard deviation over the splits; from 1 to the number of classes."""

    mean: float
    std: float


def inception_score(logits: np.ndarray, *, splits: int = SPLITS, seed: int | None = SEED) -> InceptionScore:
    """exp of the mean over images of KL(p(y|x) ‖ p(y)), a split at a time, of logits [N, K] that may lie on the disk.

    seed: of the shuffle before the images are split, which is torch-fidelity's with the same seed; None: they stay in order, as in the
        original, where images in the order of their classes give another score
    Raises UserError for fewer than two images a split, and for logits that are not finite.
    """
    num = len(logits)
    if num < 2 * splits:
        raise UserError(f"the Inception Score takes {splits} splits of 2 images or more, and {num} images are too few for them")
    order = np.arange(num) if seed is None else np.random.RandomState(seed).permutation(num)
    scores = [_score(logits[order[part * num // splits : (part + 1) * num // splits]]) for part in range(splits)]
    return InceptionScore(float(np.mean(scores)), float(np.std(scores)))


def _score(logits: np.ndarray) -> float:
    check_finite(logits)
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    p = np.exp(log_p)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (log_p - np.log(p.mean(0))), 0)
    return float(np.exp(terms.sum(1).mean()))
