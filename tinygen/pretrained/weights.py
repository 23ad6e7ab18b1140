"""Weights of networks from files of four formats, told apart by what they hold: only numbers are read, nothing is run.

`find` gets the public file of the FID's Inception-v3 from where it lies on this machine, or else from its release page.
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
"""What torch-fidelity's and pytorch-fid's weights are called, which are the same bytes, and their SHA-256."""

URL = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
LARGEST = 2**30  # bytes of a file and of what it unpacks to: no feature network or autoencoder has as many
PATIENCE = 30  # seconds without a byte

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


def read(path: str | Path) -> tuple[dict[str, np.ndarray], str]:
    """(arrays by name, SHA-256 of the file) of a `.pth` of PyTorch (either format), an `.npz` or a `.safetensors`.

    Nothing in the file is run. A file that bears a public name has to be that file; its sum is compared before it is parsed.

    Raises:
      UserError: the file cannot be read, is torn or something else, or would run code.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UserError(f"weights {path}: not a regular file")
        data = path.read_bytes() if size <= LARGEST else b""
    except OSError as error:
        raise UserError(f"weights {path}: {error.strerror}") from error
    if size > LARGEST:
        raise UserError(f"weights {path}: {size:,} bytes are more than any network read here has ({LARGEST:,})")
    sha256 = hashlib.sha256(data).hexdigest()
    if path.name in NAMES and sha256 != PUBLIC:
        raise UserError(
            f"weights {path}: not the public file of that name, or torn ({size:,} bytes, SHA-256 {sha256[:8]}..., not {PUBLIC[:8]}...)\n"
            "delete it and get it again; other weights need another name"
        )
    try:
        return parse(data), sha256
    except Exception as error:  # anyone may have made these bytes, and what zipfile, NumPy and others raise for them has no end
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) and str(error) else f"damaged ({type(error).__name__})"
        raise UserError(f"weights {path}: {reason} ({size:,} bytes, SHA-256 {sha256[:8]}...)") from error


def parse(data: bytes) -> dict[str, np.ndarray]:
    """Arrays by name. Raises ValueError with a reason, or something else, for what is no file of weights."""
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
    if data[8:9] == b"{":  # behind the header's length
        return tensors(data)
    if not data:
        raise ValueError("empty")
    if data.lstrip()[:1] == b"<":
        raise ValueError("a web page, not weights")
    raise ValueError("torn, or none of PyTorch's .pth, .npz and .safetensors")


def tensors(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a .safetensors file, those of bfloat16 among them, which safetensors' own reader into NumPy does not know."""
    arrays = {}
    for name, view in safetensors.deserialize(data):
        if view["dtype"] not in DTYPES:
            raise ValueError(f"its {name[:80]} is of type {view['dtype']}, which is not read")
        arrays[name] = np.frombuffer(view["data"], DTYPES[view["dtype"]]).reshape(view["shape"])
    return arrays


def find(weights: str | None, url: str = URL) -> Path:
    """The file of Inception's weights: the one given, or the public one where this tool, torch.hub and pytorch-fid keep it.

    Where there is none it is downloaded, into this tool's cache folder.

    Raises:
      UserError: the given file does not exist, or there is none and it cannot be downloaded.
    """
    if weights:
        if not Path(weights).is_file():
            raise UserError(f"--weights={weights}: no such file")
        return Path(weights)
    own, torch = cache_folders()
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


def cache_folders() -> tuple[Path, Path]:
    """Where this tool keeps weights, and where torch.hub does, which pytorch-fid and torch-fidelity use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tinygen" / "weights", Path(os.environ.get("TORCH_HOME") or cache / "torch") / "hub" / "checkpoints"


def download(url: str, path: Path, sha256: str) -> Path:
    """Brings a file, with a progress bar. It gets its name when it is whole: its SHA-256 has been compared.

    Raises OSError, HTTPException, or ValueError for other bytes than the expected ones; nothing is left behind then.
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
            raise ValueError(f"SHA-256 {total.hexdigest()[:8]}... came, not {sha256[:8]}...")
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return path
