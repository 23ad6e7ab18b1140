"""Weights of networks from files of four formats, detected by content. Only numbers are read; no code is executed.

`find` locates the public weights of FID's Inception-v3 on this machine, or downloads them from the release page.
"""

import contextlib
import functools
import hashlib
import http.client
import io
import os
import urllib.request
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
from rich.progress import wrap_file

from tinygen.errors import UserError
from tinygen.pretrained import torch_file
from tinygen.system import npy

PUBLIC = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
NAMES = ("pt_inception-2015-12-05-6726825d.pth", "weights-inception-2015-12-05-6726825d.pth")
"""File names of torch-fidelity's and pytorch-fid's weights, which are identical, and their SHA-256."""

URL = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
LARGEST = 2**30  # maximum bytes of a file, compressed and uncompressed: no feature network or autoencoder is larger
PATIENCE = 30  # seconds without data before a download times out

DTYPES = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip


def read(path: str | Path) -> tuple[dict[str, np.ndarray], str]:
    """(arrays by name, SHA-256 of the file) of a `.pth` of PyTorch (either format), an `.npz` or a `.safetensors`.

    No code in the file is executed. A file with a public name must be that file, which is checked before parsing. Raises UserError if
    the file cannot be read, is torn or not a weights file, or would execute code.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UserError(f"weights {path}: not a regular file")
        if size > LARGEST:
            raise UserError(f"weights {path}: {size:,} bytes are more than any network read here has ({LARGEST:,})")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"weights {path}: {error.strerror}") from error
    sha256 = hashlib.sha256(data).hexdigest()
    if path.name in NAMES and sha256 != PUBLIC:
        raise UserError(
            f"weights {path}: not the public file of that name, or torn ({size:,} bytes, SHA-256 {sha256[:8]}..., not {PUBLIC[:8]}...)\n"
            "delete it and get it again; other weights need another name"
        )
    try:
        return parse(data), sha256
    except Exception as error:  # the file is untrusted, and zipfile, NumPy and others may raise anything
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) and str(error) else f"damaged ({type(error).__name__})"
        raise UserError(f"weights {path}: {reason} ({size:,} bytes, SHA-256 {sha256[:8]}...)") from error


def parse(data: bytes) -> dict[str, np.ndarray]:
    """Arrays by name. Raises ValueError with a reason, or another error, if the data are not a weights file's."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"unpacks to more than {LARGEST:,} bytes")
            if any(entry.compress_type not in npy.PACKED for entry in archive.infolist()):
                raise ValueError("compressed by a method other than deflate")
            names = archive.namelist()
            if any(name.endswith("/data.pkl") for name in names):
                return torch_file.read_zip(archive)
            if not names or not all(name.endswith(".npy") for name in names):
                raise ValueError("a zip archive, but neither PyTorch's nor NumPy's")
        with npy.Npz(io.BytesIO(data)) as file:
            return {name: file.read(name) for name in file.names}
    if torch_file.is_stream(data):
        return torch_file.read_stream(data)
    if data[8:9] == b"{":  # after the header's length
        return tensors(data)
    if not data:
        raise ValueError("empty")
    if data.lstrip()[:1] == b"<":
        raise ValueError("a web page, not weights")
    raise ValueError("torn, or none of PyTorch's .pth, .npz and .safetensors")


def tensors(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a .safetensors file, including bfloat16, which safetensors' NumPy reader does not support."""
    arrays = {}
    for name, view in safetensors.deserialize(data):
        if view["dtype"] not in DTYPES:
            raise ValueError(f"its {name[:80]} is of type {view['dtype']}, which is not read")
        arrays[name] = np.frombuffer(view["data"], DTYPES[view["dtype"]]).reshape(view["shape"])
    return arrays


def find(weights: str | None, url: str = URL) -> Path:
    """The path of Inception's weights: the given file, or the public one, in the cache of torch.hub (which pytorch-fid and
    torch-fidelity use) or of tinygen, where it is downloaded to if neither has it.

    Raises UserError if the given file does not exist, or the public one cannot be downloaded.
    """
    if weights:
        if not Path(weights).is_file():
            raise UserError(f"--weights={weights}: no such file")
        return Path(weights)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own, torch = cache / "tinygen" / "weights", Path(os.environ.get("TORCH_HOME") or cache / "torch") / "hub" / "checkpoints"
    for folder in (own, torch):
        for name in NAMES:
            if (folder / name).is_file():
                return folder / name
    try:
        return download(url, own / NAMES[0], PUBLIC)
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError
        raise UserError(
            f"Inception's weights are not here and could not be downloaded ({getattr(error, 'reason', error)}): put {NAMES[0]}\n"
            f"into {own} or give it as --weights=FILE (SHA-256 {PUBLIC}; from {url}). Without it: --features=efflite0"
        ) from error


def download(url: str, path: Path, sha256: str) -> Path:
    """Downloads a file, with a progress bar. It is renamed to `path` once its SHA-256 has been verified.

    Raises OSError, HTTPException, or ValueError for a wrong checksum; no partial file remains.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    total = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response, part.open("wb") as file:
            length = int(response.headers.get("Content-Length") or 0)
            with wrap_file(response, total=length, description=path.name, transient=True) as body:
                for block in iter(functools.partial(body.read, 2**20), b""):
                    total.update(block)
                    file.write(block)
        if total.hexdigest() != sha256:
            raise ValueError(f"SHA-256 {total.hexdigest()[:8]}... in place of {sha256[:8]}...")
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return path
