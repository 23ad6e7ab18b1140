"""A folder in an object store (gs://), which has whole files only, and neither links nor pipes."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import IO

from etils import epath

from tinygen.workdir.disk import Entry, Folder, encoded
from tinygen.workdir.reading import LINES


class Bucket(Folder):
    """A folder in an object store, through epath."""

    append_interval = 120.0  # each append rewrites the whole file

    def type_of(self, name: str = "") -> str | None:
        path = self.path(name)
        return "folder" if path.is_dir() else "file" if path.exists() else None

    def entries(self, name: str = "") -> list[Entry]:
        paths = sorted(self.path(name).iterdir()) if self.path(name).exists() else []
        return [self._entry(path) for path in paths]

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        with self.path(name).open("rb") as file:
            yield file

    def lines(self, name: str, last: int | None = None) -> Iterator[bytes | None]:
        content = self.read(name, LINES) or b""
        if last is not None and len(content) > last:
            content = content[-last:].partition(b"\n")[2]
        yield from content.splitlines(keepends=True)

    def write(self, name: str, content: str | bytes | Iterable[bytes]) -> None:
        self.path(name).write_bytes(encoded(content) if isinstance(content, str | bytes) else b"".join(content))

    def append(self, name: str, content: str | bytes) -> None:
        self.write(name, (self.read(name, LINES) or b"") + encoded(content))

    def make(self, name: str = "") -> None:
        self.path(name).mkdir(parents=True, exist_ok=True)

    def remove(self, name: str) -> None:
        path = self.path(name)
        if path.is_dir():
            path.rmtree()
        else:
            path.unlink(missing_ok=True)

    def move(self, name: str, to: str) -> None:
        self.path(name).rename(self.path(to))

    def sweep(self, name: str = "") -> None:
        """Nothing to do: a store writes whole files or none."""

    def check(self) -> None:
        """Nothing to do: any path can be written to."""

    def _entry(self, path: epath.Path) -> Entry:
        if path.is_dir():
            return Entry(path.name, "folder", 0, 0, 0.0)
        status = path.stat()
        return Entry(path.name, "file", status.length, status.length, status.mtime)
