"""Inception Score: high if each image has a clear class and the classes vary (Salimans et al. 2016)."""

from typing import NamedTuple

import numpy as np

from tinygen.errors import UserError
from tinygen.evaluation.metrics.moments import check_finite

SPLITS = 10
FEWEST = 2 * SPLITS  # a split of one image always has a score of 1
SEED = 2020  # torch-fidelity's default


class InceptionScore(NamedTuple):
    """Mean and standard deviation over the splits; from 1 to the number of classes."""

    mean: float
    std: float


def inception_score(logits: np.ndarray, *, splits: int = SPLITS, seed: int | None = SEED) -> InceptionScore:
    """exp of the mean over images of KL(p(y|x) ‖ p(y)), per split, of logits [N, K], which may be memory-mapped.

    seed: of the shuffle before splitting, the same as torch-fidelity's; None: no shuffle, as in the original, where images sorted by class
        give a different score
    Raises UserError for fewer than two images per split, and for non-finite logits.
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
