"""A resumable file of features: float32 rows, appended in order."""

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
SUMMED = 4096  # rows in memory at a time during verification


@dataclasses.dataclass(frozen=True)
class FeatureFile:
    """Rows of features [N, D], and a .json file of the same name with the number of complete rows and their checksum.

    The latter is written last and atomically, so a process killed at any time leaves only complete rows.
    """

    path: Path  # of the rows; the folder is created with the first rows
    dim: int  # features per row
    protocol: str  # how the features were computed; rows with another protocol are neither read nor extended

    @property
    def rows(self) -> int:
        """The number of complete rows; 0 without a file. Raises UserError if it is damaged, or has another protocol or dimension."""
        return self._whole()[0]

    def _whole(self) -> tuple[int, int]:
        """(number of complete rows, the CRC-32 of their bytes)"""
        try:
            head = json.loads(self._head.read_text("utf-8"))
            rows, dim, protocol, crc = int(head["rows"]), int(head["dim"]), str(head["protocol"]), int(head["crc32"])
            size = self.path.stat().st_size if rows else 0
        except FileNotFoundError:
            if not self._head.exists():
                return 0, 0
            raise UserError(f"{self.path} is missing, although {self._head.name} exists: delete {self._head} to start over") from None
        except OSError as error:
            raise UserError(f"{self._head} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{self._head} is damaged ({type(error).__name__}): delete it to start over") from error
        if dim != self.dim:
            raise UserError(f"{self.path} holds rows of {dim} features, not of {self.dim}: they are another network's. Delete {self._head}")
        if protocol != self.protocol:
            raise UserError(f"{self.path} was made by another protocol ({protocol!r} -> {self.protocol!r}): delete {self._head}")
        if not 0 <= rows * self._row <= size:
            raise UserError(f"{self.path} is damaged: {rows} rows are {rows * self._row} bytes, and it has {size}. Delete {self._head}")
        return rows, crc

    def append(self, start: int, features: np.ndarray) -> None:
        """Writes rows [B, D] from row `start` on, and syncs them to disk.

        start: at most the number of complete rows; existing rows are not rewritten
        Raises UserError for non-finite features, for a full or read-only disk, and if rows have disappeared in the meantime.
        """
        rows, crc = self._whole()
        if start < 0 or features.shape[1:] != (self.dim,):
            raise ValueError(f"rows {features.shape} at {start} do not continue at row {rows} of {self.dim} features")
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
                file.truncate()  # leftovers of a killed process
                file.flush()
                os.fsync(file.fileno())
            self._write_head(rows + len(fresh), zlib.crc32(written, crc))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, rows * self._row)  # do not leave a partial row on a full disk
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}. The first {rows} rows are whole: make room, or name another folder in "
                "XDG_CACHE_HOME, and give the same command again"
            ) from error

    def read(self) -> np.ndarray:
        """The complete rows, float32 [N, D], as a read-only memory map. Raises UserError if their checksum is wrong."""
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
        """Deletes the rows, if they exist."""
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
