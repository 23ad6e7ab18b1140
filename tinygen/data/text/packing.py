"""Windows of a stream of tokens, by index arithmetic: there is no stateful packer, and window i depends on i alone.

The stream is E d1 d2 ... dn E d'1 ... E, where the end token E ends a document and begins the next. A window of `length` predictions is
`length` + 1 consecutive tokens.
"""

import dataclasses

import numpy as np

from tinygen.data.examples import Batch, Examples

NO_BYTE = 0xFF  # does not occur in UTF-8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """The concatenated tokens of documents.

    tokens: integers [S] on disk, from the first E to the last. In uint8 the tokens are bytes, with NO_BYTE for E
    starts: int64 [N], the position of each document's E
    bytes: UTF-8 bytes of all documents
    fallback: bytes that a vocabulary of characters spells one by one, for lack of their character
    """

    tokens: np.ndarray
    starts: np.ndarray
    bytes: int
    fallback: int = 0

    @property
    def predicted(self) -> int:
        """Number of predicted tokens: all but the first E."""
        return len(self.tokens) - 1


@dataclasses.dataclass(frozen=True)
class Windows(Examples):
    """The windows of a stream: `tokens`, `target` and `segment`, int32 [length] each.

    `segment` starts at 1 and increases at each further E, which belongs to the document that it begins. In padding `segment` is 0, and
    tokens and targets are E.

    firsts: int64 [N + 1], the number of windows before each document, then of all, if every document begins a new window; None = packed
    """

    stream: Stream
    length: int
    end: int
    firsts: np.ndarray | None = None

    def __len__(self) -> int:
        return -(-self.stream.predicted // self.length) if self.firsts is None else int(self.firsts[-1])

    @property
    def padding(self) -> float:
        """The share of targets that are padding."""
        return 1 - self.stream.predicted / (len(self) * self.length)

    def take(self, indices: np.ndarray) -> Batch:
        begins, counts = self._spans(np.asarray(indices, np.int64))
        steps = np.arange(self.length + 1)
        places = np.minimum(begins[:, None] + steps, self.stream.predicted)
        rows = self.stream.tokens[places].astype(np.int32)
        if self.stream.tokens.dtype == np.uint8:
            rows[rows == NO_BYTE] = self.end
        there = steps[:-1] < counts[:, None]
        tokens, target = (np.where(there, part, self.end).astype(np.int32) for part in (rows[:, :-1], rows[:, 1:]))
        ends = np.cumsum(tokens == self.end, axis=1)
        segment = np.where(there, 1 + ends - ends[:, :1], 0).astype(np.int32)
        return {"tokens": tokens, "target": target, "segment": segment}

    def _spans(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(each window's start in the stream, its number of predicted tokens)"""
        if self.firsts is None:
            begins = indices * self.length
            stops = np.int64(self.stream.predicted)
        else:
            documents = np.searchsorted(self.firsts, indices, side="right") - 1
            begins = self.stream.starts[documents] + (indices - self.firsts[documents]) * self.length
            after = np.minimum(documents + 1, len(self.stream.starts) - 1)
            stops = np.where(documents < after, self.stream.starts[after], self.stream.predicted)
        return begins, np.minimum(stops - begins, self.length)


def windows(stream: Stream, length: int, end: int, pack: bool) -> Windows:
    """pack: windows follow each other across documents; otherwise every document begins a new window"""
    if pack:
        return Windows(stream, length, end)
    predicted = np.diff(stream.starts, append=stream.predicted)
    return Windows(stream, length, end, np.concatenate([[0], np.cumsum(-(-predicted // length))]))
