"""Pretrained text encoders: CLIP (Radford et al. 2021) and T5 (Raffel et al. 2020).

They run in PyTorch and transformers, once for the captions of the data and once for the prompts of a call. Nothing else needs either.
"""

import dataclasses
import hashlib
import importlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from tinygen.errors import UserError, unknown

MODELS = {"clip": "CLIPTextModel", "clip_text_model": "CLIPTextModel", "t5": "T5EncoderModel"}  # kind of a config.json -> class
LONGEST = 4096  # maximum tokens of a caption
PATIENCE = 5  # timeout of requests to the hub in seconds
NEEDS = "text encoders need transformers and PyTorch: pip install 'tinygen[text]'"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder:
    """Captions -> the last hidden state of their tokens.

    count: captions -> number of tokens of each, without a limit
    encode: (captions, S) -> (float32 [N, S, D], zero for padding; bool [N, S], False for padding, which comes last). Longer captions are
        truncated
    """

    name: str  # the absolute path of a folder, or a name on the hub
    sha256: str  # of the weights, whatever files they are in
    features: int  # D
    length: int  # maximum tokens of a caption, including begin and end tokens
    count: Callable[[Sequence[str]], list[int]]
    encode: Callable[[Sequence[str], int], tuple[np.ndarray, np.ndarray]]

    def prompts(self, words: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Like `encode`, but raises UserError for a prompt that is empty or would be truncated."""
        for prompt, num in zip(words, self.count(words), strict=True):
            shown = f"{prompt[:60]!r}{'...' * (len(prompt) > 60)}"
            if not prompt.strip():
                raise UserError(f"the prompt {shown} is empty: say what to draw")
            if num > length:
                raise UserError(f"the prompt {shown} has {num} tokens, and this model reads {length}: shorten it")
        return self.encode(words, length)


def load(encoder: str, option: str = "--encoder", *, accelerated: bool = False) -> Encoder:
    """The text encoder and tokenizer in a folder or on the hub, in float32.

    option: the option that it was given with
    accelerated: use a GPU if PyTorch has one
    Raises UserError, within seconds, if it is not available or not a text encoder.
    """
    try:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise UserError(f"{option}={encoder}: {NEEDS}") from error
    folder, name = _placed(encoder, option)
    transformers.logging.set_verbosity_error()  # captions that are too long are reported elsewhere
    transformers.logging.disable_progress_bar()
    try:
        kind = transformers.AutoConfig.from_pretrained(folder, local_files_only=True).model_type
        if kind not in MODELS:
            raise unknown(f"kind of text encoder in {option}={encoder}", kind, MODELS)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        made = getattr(transformers, MODELS[kind])
        model, loading = made.from_pretrained(folder, local_files_only=True, dtype=torch.float32, output_loading_info=True)
    except UserError:
        raise
    except Exception as error:  # damaged files can raise anything
        said = " ".join(str(error).split())[:200]
        cure = "A folder holds config.json, the weights and the tokenizer's files."
        raise UserError(f"{option}={encoder} cannot be read as a text encoder ({said}).\n{cure}") from error
    if missing := sorted(loading["missing_keys"]):
        raise UserError(f"{option}={encoder}: {len(missing)} arrays of the text encoder are missing, the first is {missing[0]}")
    device = "cuda" if accelerated and torch.cuda.is_available() else "cpu"
    return _encoder(name, model.to(device).eval(), tokenizer, torch.inference_mode)


def _encoder(name: str, model: Any, tokenizer: Any, inference: Callable[[], AbstractContextManager]) -> Encoder:
    """inference: PyTorch's inference mode"""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    features = int(model.config.hidden_size)
    length = min(LONGEST, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", LONGEST))

    def count(captions: Sequence[str]) -> list[int]:
        return [len(tokens) for tokens in tokenizer(list(captions))["input_ids"]] if captions else []

    def encode(captions: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
        given = tokenizer(list(captions), padding="longest", truncation=True, max_length=length, return_tensors="pt").to(model.device)
        with inference():
            hidden = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).last_hidden_state
        longest = hidden.shape[1]
        embed, there = np.zeros((len(captions), length, features), np.float32), np.zeros((len(captions), length), bool)
        there[:, :longest] = given["attention_mask"].cpu().numpy() > 0
        embed[:, :longest] = hidden.cpu().numpy()
        return embed * there[..., None], there

    return Encoder(name=name, sha256=_digest(model), features=features, length=length, count=count, encode=encode)


def _digest(model: Any) -> str:
    """SHA-256 of the shapes and values of all arrays in float32, independent of their names and of the file format."""
    each = (parameter.detach().cpu().float().numpy() for parameter in model.parameters())
    sums = sorted(f"{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}" for array in each)
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def _placed(encoder: str, option: str) -> tuple[str, str]:
    """(the folder, the encoder's name); downloads an encoder from the hub if needed."""
    folder = os.path.abspath(os.path.expanduser(encoder))
    if os.path.isdir(folder):
        return folder, folder
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", encoder):
        raise UserError(f"{option}={encoder}: there is no such folder")
    return _downloaded(encoder, option), encoder


def _downloaded(name: str, option: str) -> str:
    """The local folder of an encoder from the hub. A previous download needs no network."""
    hub = importlib.import_module("huggingface_hub")
    try:
        listed = hub.HfApi().model_info(name, timeout=PATIENCE).siblings or []
        whole = any(each.rfilename.endswith(".safetensors") for each in listed)
        patterns = ["*.json", "*.txt", "*.model", "*.safetensors" if whole else "pytorch_model*.bin"]
        return hub.snapshot_download(name, allow_patterns=patterns)
    except Exception as error:  # errors of the network, a proxy or the hub have different types
        said = next(iter(str(error).splitlines()), "")[:160]
        try:
            return hub.snapshot_download(name, local_files_only=True)
        except Exception:
            raise UserError(
                f"{option}={name}: there is no such folder, and the hub does not give an encoder of that name ({said}).\n"
                "Without a network, bring its folder from elsewhere: config.json, the weights and the tokenizer's files."
            ) from error
