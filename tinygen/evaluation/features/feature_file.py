"""Features on the disk: float32 rows that a run writes in order, and goes on with where it was interrupted."""

import contextlib
import dataclasses
import json
import os
import zlib
from pathlib import Path

import numpy as np

from tinygen.errors import UserError
from tinygen.evaluation.metrics.moments import check_finite

DTYPE = np.dtype("<f4")
SUMMED = 4096  # rows that are in memory at once while they are checked
CONTEXT = 60  # characters of a protocol that a message repeats


@dataclasses.dataclass(frozen=True)
class FeatureFile:
    """Rows of features [N, D] one after another, and beside them, under the same name with .json, how many are whole, and their sum.

    These are written last, and in one piece: a process killed at any moment leaves a file that ends at a whole row.
    path: of the rows; the folder is made when the first are written
    dim: features a row
    protocol: how they came about; rows of another are neither read nor gone on with
    """

    path: Path
    dim: int
    protocol: str

    @property
    def rows(self) -> int:
        """Whole rows; 0 where there is no file. Raises UserError where the file is damaged, or of another protocol or dimension."""
        return self._whole()[0]

    def _whole(self) -> tuple[int, int]:
        """(whole rows, the CRC-32 of their bytes)"""
        try:
            head = json.loads(self._head.read_text("utf-8"))
            rows, dim, protocol, crc = int(head["rows"]), int(head["dim"]), str(head["protocol"]), int(head["crc32"])
            size = self.path.stat().st_size if rows else 0
        except FileNotFoundError:
            if not self._head.exists():
                return 0, 0
            raise UserError(f"{self.path} is not there, and {self._head.name} says that it is: delete {self._head} to begin anew") from None
        except OSError as error:
            raise UserError(f"{self._head} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{self._head} is damaged ({type(error).__name__}): delete it to begin anew") from error
        if dim != self.dim:
            raise UserError(f"{self.path} holds rows of {dim} features, not of {self.dim}: they are another network's. Delete {self._head}")
        if protocol != self.protocol:
            raise UserError(f"{self.path} was made by another protocol ({_difference(protocol, self.protocol)}): delete {self._head}")
        if not 0 <= rows * self._row <= size:
            raise UserError(f"{self.path} is damaged: {rows} rows are {rows * self._row} bytes, and it has {size}. Delete {self._head}")
        return rows, crc

    def append(self, start: int, features: np.ndarray) -> None:
        """Writes rows [B, D] as those from `start` on; they are on the disk when it returns.

        start: where the whole ones end, or before it: those that are whole already stay as they are
        Raises UserError for features that are not finite, for a disk that is full or cannot be written, and where rows have gone meanwhile.
        """
        rows, crc = self._whole()
        if start < 0 or features.shape[1:] != (self.dim,):
            raise ValueError(f"rows {features.shape} at {start} do not go on from row {rows} of {self.dim} features")
        if start > rows:
            raise UserError(f"{self.path} was emptied while it was being written. Give the same command again")
        check_finite(features, start)
        fresh = features[rows - start :]
        if not len(fresh):
            return
        written = np.ascontiguousarray(fresh, DTYPE).tobytes()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
                file.seek(rows * self._row)
                file.write(written)
                file.truncate()  # what a killed process has left beyond
                file.flush()
                os.fsync(file.fileno())
            self._write_head(rows + len(fresh), zlib.crc32(written, crc))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, rows * self._row)  # half a row on a full disk would keep it full
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}. The first {rows} rows are whole: make room, or name another folder in "
                "XDG_CACHE_HOME, and give the same command again"
            ) from error

    def read(self) -> np.ndarray:
        """The whole rows, float32 [N, D], on the disk; they cannot be changed. Raises UserError where they are not what was written."""
        rows, crc = self._whole()
        if not rows:
            return np.zeros((0, self.dim), DTYPE)
        features, found = np.memmap(self.path, DTYPE, "r", shape=(rows, self.dim)), 0
        for start in range(0, rows, SUMMED):
            found = zlib.crc32(features[start : start + SUMMED].tobytes(), found)
        if found != crc:
            raise UserError(f"{self.path} is damaged: its bytes are not those that were written. Delete {self._head}")
        return features

    def delete(self) -> None:
        """Takes the rows off the disk, if they are there."""
        self._head.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    @property
    def _head(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def _row(self) -> int:
        return self.dim * DTYPE.itemsize

    def _write_head(self, rows: int, crc: int) -> None:
        fresh = self._head.with_name(f"{self._head.name}.new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump({"rows": rows, "dim": self.dim, "dtype": "float32", "crc32": crc, "protocol": self.protocol}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._head)


def _difference(theirs: str, ours: str) -> str:
    """Where two strings begin to differ: "...nfe: 25 -> ...nfe: 50"."""
    unlike = [index for index, (one, other) in enumerate(zip(theirs, ours, strict=False)) if one != other]
    same = unlike[0] if unlike else min(len(theirs), len(ours))
    start = max(0, same - CONTEXT // 2)
    dots = "..." if start else ""
    return " -> ".join(f"{dots}{text[start : start + CONTEXT]!r}" for text in (theirs, ours))
