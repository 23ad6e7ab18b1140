"""DataSource: batches as a pure function of (seed, attempt, batch number), so a run's data position is its step number.

Grain's `MapDataset` shuffles *indices*; examples are read one batch at a time. With several processes, each reads only its
rows of the global batch; together they read what a single process would.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tinygen.data.codec import Codec
from tinygen.data.condition import Condition
from tinygen.data.contents import Contents
from tinygen.data.examples import Batch, Examples, ExtendedExamples, FirstExamples, Rows
from tinygen.errors import UserError, unknown
from tinygen.media.base import Spec


class Reading(Iterator[Batch], Protocol):
    """Batches that threads may prefetch until it is closed."""

    def close(self) -> None: ...


Draw = Callable[[np.ndarray, Sequence[np.random.Generator]], Batch]
"""(indices, generators) -> examples, each drawn at random with its generator."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSource:
    """A data set: reads batches, and has the codec that gives them meaning.

    splits: the examples of "train" and "validation"
    fingerprint: changes when the data does; a run is not resumed on other data
    contents: what the data consist of, to report changes
    flip: mirror a random half of the training examples, drawn anew each epoch
    draw: replaces `take` in training if examples are random
    summary: lines for the log; by default the numbers of examples and the labels
    uncaptioned: a possible reason for missing captions; "" = unknown
    """

    codec: Codec
    splits: Mapping[str, Examples]
    fingerprint: str
    contents: Contents = dataclasses.field(default_factory=Contents)
    flip: bool = False
    draw: Draw | None = None
    summary: tuple[str, ...] = ()
    uncaptioned: str = ""

    def batches(
        self, split: str, batch_size: int, seed: int, attempt: int = 0, start: int = 0, rows: Sequence[int] | None = None,
        *, ahead: bool = True,
    ) -> Reading:  # fmt: skip
        """Batches `start`, `start + 1`, ... of the endless concatenation of the split's shuffled epochs.

        Args:
          batch_size: examples in the global batch.
          attempt: selects another order for the same seed, after a rollback.
          rows: this process's positions in the global batch; all by default.
          ahead: prefetch in Grain's threads; otherwise each batch is read on request.
        """
        import grain

        examples = self._split(split)
        mixed = int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0])  # Grain's 32 bits; neighbouring pairs are uncorrelated
        order = grain.MapDataset.range(len(examples)).seed(mixed).shuffle().repeat().batch(batch_size, drop_remainder=True)
        mine = _selection(rows)

        def read(number: int, indices: np.ndarray) -> Batch:
            if self.draw is not None and split == "train":
                places = np.arange(batch_size)[mine]  # seeds do not depend on which process reads an example
                return self.draw(np.asarray(indices)[mine], [np.random.default_rng([seed, attempt, number, place]) for place in places])
            batch = examples.take(np.asarray(indices)[mine])
            if not self.flip or split != "train":
                return batch
            return self.codec.medium.augment(batch, np.random.default_rng([seed, attempt, number]).random(batch_size)[mine])

        reading = order.map_with_index(read)[start:]  # sliced after numbering: batches are numbered from the run's start
        threads, buffer = (2, 4) if ahead else (0, 0)
        return iter(reading.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)))

    def epoch(self, split: str, batch_size: int, limit: int = 0, rows: Sequence[int] | None = None) -> Iterator[Batch]:
        """One pass in stored order over the first `limit` examples, 0 = all; the last batch is padded, with `weight` 0.

        rows: as for `batches`
        """
        examples = self._split(split)
        num = min(len(examples), limit or len(examples))
        mine = _selection(rows)
        for start in range(0, num, batch_size):
            indices = np.arange(start, start + batch_size)[mine]
            yield {**examples.take(indices % num), "weight": (indices < num).astype(np.float32)}

    def overfitting(self, num: int) -> "DataSource":
        """The source with only the first `num` training examples; 0 = all."""
        if num == 0:
            return self
        train = self._split("train")
        if num > len(train):
            raise UserError(f"config.data.overfit={num}: the training split has only {len(train)} examples")
        return dataclasses.replace(
            self,
            splits={**self.splits, "train": FirstExamples(train, num)},
            fingerprint=f"{self.fingerprint}[:{num}]",
            summary=(*self.about(), f"only the first {num} are trained on (config.data.overfit)"),
        )

    def with_condition(self, condition: Condition, spec: Spec, rows: Mapping[str, Rows], **changes: Any) -> "DataSource":
        """The source with one more condition, and with other `changes` of its fields.

        spec: describes the condition's arrays
        rows: read them, by split
        """
        splits = {split: ExtendedExamples(examples, rows[split]) for split, examples in self.splits.items()}
        before = self.draw
        draw = before and (lambda indices, generators: {**before(indices, generators), **rows["train"](indices)})
        return dataclasses.replace(self, codec=self.codec.with_condition(condition, spec), splits=splits, draw=draw, **changes)

    def about(self) -> list[str]:
        """A summary of the data, as lines."""
        if self.summary:
            return list(self.summary)
        labels = self.codec.labels
        names = ", ".join(labels[:12]) + (", ..." if len(labels) > 12 else "")
        counts = f"{len(self._split('train')):,} examples to train on, {len(self._split('validation')):,} held out"
        return [f"{counts}; {len(labels)} labels: {names}" if labels else counts]

    def _split(self, name: str) -> Examples:
        if name not in self.splits:
            raise unknown("split", name, self.splits)
        return self.splits[name]


def check_batch(batch: Mapping[str, np.ndarray], codec: Codec) -> None:
    """Raises UserError if a batch does not match the codec: shape, dtype, range, spread, labels, segments.

    Run on the first batch of every source. A whole sweep has been lost to images in the wrong scale.
    """
    for key, field in codec.spec.items():
        if key not in batch:
            raise UserError(f"first batch: {key!r} is missing; it holds {sorted(batch)}")
        array = np.asarray(batch[key])
        if array.shape[1:] != field.shape or array.dtype != np.dtype(field.dtype):
            raise UserError(
                f"first batch: {key!r} is {array.dtype}{list(array.shape[1:])} per example, the codec says {field.dtype}{list(field.shape)}"
            )
        if not np.all(np.isfinite(array)):
            raise UserError(f"first batch: {key!r} has non-finite values")
        low, high = array.min(), array.max()
        if (field.low is not None and low < field.low) or (field.high is not None and high > field.high):
            raise UserError(f"first batch: {key!r} spans [{low:g}, {high:g}], outside [{field.low}, {field.high}]: {codec.medium.doubt}")
    codec.domain.check(batch)
    codec.medium.check(batch, codec.spec)


def _selection(rows: Sequence[int] | None) -> slice | np.ndarray:
    """`rows` as an index; all rows are a slice, which copies nothing."""
    return slice(None) if rows is None else np.asarray(rows)
