"""Arrays from untrusted .npy and .npz files: headers are validated before an array is allocated.

A few megabytes of compressed zeros can declare, and unpack to, any size. So read the header, compare the shape with what is expected,
and then read. Only plain numbers and strings are supported: no pickles, no structured types.
"""

import io
import math
import os
import zipfile
from typing import IO, NamedTuple

import numpy as np

LONGEST = 10_000  # largest header in bytes, NumPy's own limit; a longer one is refused before it is read
TEXT = 2**20  # largest string in bytes
BLOCK = 2**20  # bytes decompressed at a time
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as NumPy writes; only these decompress in bounded pieces


class Header(NamedTuple):
    """The declaration of a .npy file. columns: column-major (Fortran) order. size: bytes of the header itself"""

    shape: tuple[int, ...]
    columns: bool
    dtype: np.dtype
    size: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def header(stream: IO[bytes]) -> Header:
    """Reads the header and leaves the stream at the first value.

    Raises ValueError if it is not a .npy file, for a header of more than LONGEST bytes, and for arrays of objects or structures.
    """
    magic = stream.read(np.lib.format.MAGIC_LEN)
    version = np.lib.format.read_magic(io.BytesIO(magic))
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"a .npy header of version {version[0]}.{version[1]}, which is not supported")
    count = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(count, "little")
    if length > LONGEST:
        raise ValueError(f"a .npy header of {length:,} bytes, more than {LONGEST:,}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, columns, dtype = read(io.BytesIO(count + stream.read(length)))
    except Exception as error:  # anything that parsing its Python literal may raise
        raise ValueError("a .npy header that cannot be parsed") from error
    if dtype.kind not in "biufcU" or dtype.subdtype is not None:
        raise ValueError(f"an array of {'objects' if dtype.hasobject else dtype}, where numbers are expected")
    if any(type(each) is not int or each < 0 for each in shape):
        raise ValueError(f"an array of shape {list(shape)}")
    return Header(shape, columns, dtype, len(magic) + len(count) + length)


class Npz:
    """The arrays of an .npz file; a context manager. Errors of zipfile and zlib for a damaged file reach the caller."""

    def __init__(self, file: str | IO[bytes]):
        self._archive = zipfile.ZipFile(file)
        self._entries = {entry.filename.removesuffix(".npy"): entry for entry in self._archive.infolist()}

    def __enter__(self) -> "Npz":
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def header(self, name: str) -> Header:
        """Raises ValueError if the array cannot be read, or if its size differs from its header."""
        entry = self._entries[name]
        if entry.compress_type not in PACKED:
            raise ValueError(f"{name} is compressed by a method other than deflate")
        with self._archive.open(entry) as stream:
            found = header(stream)
        if found.size + found.nbytes != entry.file_size:
            raise ValueError(f"{name} declares {found}, {found.nbytes:,} bytes, and holds {entry.file_size - found.size:,}")
        return found

    def open(self, name: str) -> IO[bytes]:
        """A stream at the first value. Raises like `header`."""
        found, stream = self.header(name), self._archive.open(self._entries[name])
        stream.seek(found.size)
        return stream

    def read(self, name: str) -> np.ndarray:
        """The whole array; check its header first. Raises like `header`, and for a wrong checksum."""
        found = self.header(name)
        values, done = np.empty(found.nbytes, np.uint8), 0
        with self.open(name) as stream:
            while piece := stream.read(BLOCK):  # to the end of the entry, where zipfile verifies the checksum
                values[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                done += len(piece)
        if done != len(values):
            raise ValueError(f"{name} holds {done:,} bytes where {len(values):,} are declared")
        return values.view(found.dtype).reshape(found.shape, order="F" if found.columns else "C")

    def text(self, name: str) -> str:
        """A string. Raises like `header`, and ValueError if it is not a string or longer than TEXT bytes."""
        found = self.header(name)
        if found.dtype.kind != "U" or found.shape or found.nbytes > TEXT:
            raise ValueError(f"{name} is {found}, where a short string is expected")
        return str(self.read(name))


def mapped(path: str | os.PathLike[str]) -> np.memmap:
    """The array of a .npy file as a memory map. Raises OSError, or ValueError if it is not a .npy file or is truncated."""
    with open(path, "rb") as stream:
        found = header(stream)
        size = os.fstat(stream.fileno()).st_size
    if found.size + found.nbytes > size:
        raise ValueError(f"it declares {found}, {found.nbytes:,} bytes, and holds {size - found.size:,}")
    return np.memmap(path, found.dtype, "r", found.size, found.shape, "F" if found.columns else "C")
