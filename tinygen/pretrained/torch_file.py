"""Reads a dict of tensors written by `torch.save`, without PyTorch and without executing code from the file.

Supports both formats: the zip archive, and the older stream of pickles followed by raw storages. A pickle is a program for a stack
machine that can call any function by name. This interpreter supports only the few instructions that dicts of tensors need; names are
never resolved, and calls other than creating a dict or a tensor are refused.
"""

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of the older format
STREAM = 1001  # the only version of that format, its second pickle

MOST = 100_000  # maximum instructions of a pickle; the public file has a few thousand
DIMENSIONS = 64  # maximum dimensions of a tensor, as in PyTorch

DTYPES = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}


class Name(NamedTuple):
    """A function or class named in a pickle, never resolved."""

    module: str
    name: str


class Storage(NamedTuple):
    """A reference to numbers elsewhere in the file."""

    dtype: np.dtype
    key: str
    size: int


class Tensor(NamedTuple):
    """A view of a storage; offset and strides in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """A view of the storage's numbers [size], not a copy. Raises ValueError if it is out of bounds."""
        whole = (self.offset, *self.shape, *self.strides)
        sound = len(self.shape) == len(self.strides) <= DIMENSIONS
        if not sound or any(type(value) is not int or not 0 <= value < 2**63 for value in whole):
            raise ValueError("a tensor's shape or strides are invalid")
        last = self.offset + sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        if math.prod(self.shape) > len(numbers) or (0 not in self.shape and last >= len(numbers)):
            raise ValueError("a tensor reaches beyond its numbers")
        strides = [stride * numbers.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, strides, writeable=False)


def read_zip(archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    """The tensors of a file of the newer format by name. Raises ValueError with a reason, or errors of zipfile and others if damaged."""
    root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("data.pkl")
    if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
        raise ValueError("its numbers are big-endian")
    tensors = state(interpret(io.BytesIO(archive.read(f"{root}data.pkl"))))
    storages: dict[str, bytes] = {}
    for tensor in tensors.values():
        key = tensor.storage.key
        if key not in storages:
            storages[key] = archive.read(f"{root}data/{key}")
    return arrays(tensors, lambda storage: np.frombuffer(storages[storage.key], storage.dtype, storage.size))


def is_stream(data: bytes) -> bool:
    """Whether a file has the header of the older format."""
    return data[:2] == b"\x80\x02" and data[2:15] == b"\x8a\x0a" + MAGIC.to_bytes(10, "little") + b"."


def read_stream(data: bytes) -> dict[str, np.ndarray]:
    """The tensors of a file of the older format by name. Raises ValueError with a reason, or other errors if damaged."""
    file = io.BytesIO(data)
    if interpret(file) != MAGIC or interpret(file) != STREAM:
        raise ValueError("it is of an unknown version")
    if interpret(file)["little_endian"] is not True:
        raise ValueError("its numbers are big-endian")
    tensors = state(interpret(file))
    keys = interpret(file)
    known = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    places: dict[str, int] = {}
    for key in keys:
        (size,) = struct.unpack("<q", file.read(8))
        if key not in known or size != known[key].size:
            raise ValueError("its storages are not those of its tensors")
        places[key] = file.tell()
        file.seek(size * known[key].dtype.itemsize, io.SEEK_CUR)
    return arrays(tensors, lambda storage: np.frombuffer(data, storage.dtype, storage.size, places[storage.key]))


def state(value: Any) -> dict[str, Tensor]:
    if not isinstance(value, dict) or not all(isinstance(key, str) and isinstance(each, Tensor) for key, each in value.items()):
        raise ValueError("it does not hold tensors by name")
    return value


def arrays(tensors: dict[str, Tensor], numbers: Callable[[Storage], np.ndarray]) -> dict[str, np.ndarray]:
    return {name: tensor.of(numbers(tensor.storage)) for name, tensor in tensors.items()}


def interpret(file: io.BytesIO) -> Any:
    """Reads the pickle at the file's position and advances past it. Raises ValueError for a pickle that would execute code."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # stacks below the marks
    memo: dict[int, Any] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if number > MOST:
            raise ValueError(f"its description takes more than {MOST:,} instructions")
        match opcode.name:
            case "PROTO":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                below.append(stack)
                stack = []
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE":
                stack.append(argument)
            case "GLOBAL":
                stack.append(Name(*str(argument).split(" ", 1)))
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}[opcode.name]
                items = [stack.pop() for _ in range(count)]
                stack.append(tuple(reversed(items)))
            case "TUPLE":
                items, stack = stack, below.pop()
                stack.append(tuple(items))
            case "EMPTY_LIST":
                stack.append([])
            case "APPEND":
                item = stack.pop()
                _of(list, stack[-1]).append(item)
            case "APPENDS":
                items, stack = stack, below.pop()
                _of(list, stack[-1]).extend(items)
            case "EMPTY_DICT":
                stack.append({})
            case "SETITEM":
                item, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, item])
            case "SETITEMS":
                items, stack = stack, below.pop()
                _set(stack[-1], items)
            case "BINPUT" | "LONG_BINPUT":
                memo[_of(int, argument)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[_of(int, argument)])
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_call(_of(Name, function), _of(tuple, arguments)))
            case "BUILD":  # on a dict: PyTorch attaches module versions
                stack.pop()
                _of(dict, stack[-1])
            case other:
                raise ValueError(f"its pickle has an instruction that tensors do not need ({other})")
    raise ValueError("its pickle has no end")


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError("its pickle is damaged, or not one of tensors")
    return value


def _set(target: Any, items: list[Any]) -> None:
    for key, item in zip(items[::2], items[1::2], strict=True):
        _of(dict, target)[_of(str | int, key)] = item


def _storage(reference: Any) -> Storage:
    """('storage', its class, its key, the device it was on, elements[, None: not a view of another])."""
    match reference:
        case ("storage", Name("torch", kind), str(key), str(), int(size), *view) if kind in DTYPES and size >= 0 and view in ([], [None]):
            return Storage(DTYPES[kind], key, size)
    raise ValueError("it refers to something other than a storage of numbers")


def _call(function: Name, arguments: tuple[Any, ...]) -> Any:
    match tuple(function), arguments:
        case ("collections", "OrderedDict"), ():
            return {}
        case ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2"), (Storage() as storage, offset, tuple(shape), tuple(strides), *_):
            return Tensor(storage, offset, shape, strides)
        case ("torch._utils", "_rebuild_parameter"), (Tensor() as tensor, *_):
            return tensor
    raise ValueError(f"its pickle would run {f'{function.module}.{function.name}'[:200]!r}")
