"""Encodes a recipe's images with an autoencoder once, to train on their latents or tokens (data set `latents`).

    python scripts/prepare/prepare_latents.py --config=dit_faces_80m:folder --config.data.path=photos --config.data.size=256 \\
        --autoencoder=vae.safetensors --out=latents/photos
    tinygen train --config=microdit_xl_latent --config.data.path=latents/photos

The autoencoder is a file of Stable Diffusion's public ones, or a run with the objective autoencoder; or it gives tokens: a
file of a public VQGAN, or a run with the objective tokenizer (recipes fsq_faces, vq_faces). Only
the section `data` of the recipe is used, with any --config.data.KEY=VALUE overrides. Both splits are encoded in order.
Each image is stored as the mean and standard deviation of its posterior, or as its tokens, with its label and caption. If the recipe
mirrors training images (data.flip), the mirrored images are encoded too, after all others, because latents cannot be
mirrored. The output is deterministic.

--like=DIR reuses the scale and shift of other latents, so that a model trained on those can continue on these, for
example on larger images.

The output folder only appears once it is complete. Its `latents.json` records the autoencoder's hash, the recipe's
section `data`, the fingerprint of the images, and the scale and shift, measured over the training latents, that
normalise them to mean 0 and variance 1.
"""

import argparse
import hashlib
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tinygen import build
from tinygen.checkpoints import store
from tinygen.cli import main as cli
from tinygen.config import Config
from tinygen.data import latents as sources
from tinygen.data.codec import Batch, Codec
from tinygen.data.domain import Encoded, Latents, Moments, Tokens
from tinygen.data.images import pixels
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.pretrained import autoencoder as autoencoders
from tinygen.pretrained.autoencoder import Autoencoder
from tinygen.pretrained.latents import at_once, in_batches
from tinygen.profiling.footprint import si
from tinygen.system import malloc, runtime
from tinygen.system.limits import free_bytes

GAP = 2**20  # bytes to leave free on the disk
Encode = Callable[[np.ndarray], Any]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Encode a recipe's images with an autoencoder, for the data set 'latents'.", allow_abbrev=False
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="RECIPE.py[:VARIANT]",
        help="recipe whose images are encoded; --config.data.KEY=VALUE overrides its keys",
    )
    parser.add_argument(
        "--autoencoder",
        required=True,
        type=os.path.expanduser,
        metavar="FILE|RUN",
        help="a file of public weights, or the workdir of a run with the objective autoencoder or tokenizer",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to create")
    parser.add_argument("--like", type=Path, metavar="DIR", help="reuse the scale and shift of other latents of this autoencoder")
    parser.add_argument(
        "--batch_size",
        type=int,
        default=0,
        metavar="N",
        help="images per device and batch; 0 = choose by their size (default: %(default)s)",
    )
    overrides, rest = cli.split_overrides(list(sys.argv[1:] if argv is None else argv))
    arguments = parser.parse_args(rest)
    malloc.retain_freed_memory()
    runtime.disable_async_dispatch()
    try:
        config, _ = cli.configured(arguments.config, overrides)
        report = prepare(config, arguments.autoencoder, arguments.out.expanduser(), arguments.batch_size, arguments.like)
    except UserError as error:
        print(f"prepare_latents: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"prepare_latents: {error.filename or arguments.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prepare_latents: interrupted; nothing was written", file=sys.stderr)
        return 130
    print(report)
    return 0


def prepare(config: Config, autoencoder: str, out: Path, batch_size: int, like: Path | None = None) -> str:
    """Writes the folder and returns a summary. Raises UserError for invalid input before anything is encoded."""
    if batch_size < 0:
        raise UserError(f"--batch_size={batch_size} must not be negative")
    if os.path.lexists(out):
        raise UserError(f"--out={out} already exists: choose another folder, or remove it first")
    found = autoencoders.load(autoencoder, "--autoencoder")
    scale = scale_of(like, found) if like else None
    source = build.data_source(config)
    shape = check_images(source.codec, found)
    if found.codes and found.channels > 1:
        raise UserError(f"the tokenizer {found.name} gives {found.channels} tokens per place, and models take one: train one with stages=1")
    check_disk_space(out, source, shape, found)
    each = batch_size or at_once(shape)
    encode = in_batches(found.encode, found.variables, each)
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    partial.mkdir(parents=True)
    try:
        prepared = write(
            partial,
            source,
            encode,
            each * jax.local_device_count(),
            provenance(config, source, found, autoencoder, shape),
            scale,
            found.codes,
        )
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    about, size, counts = prepared.latents, sum(prepared.sizes.values()), prepared.counts
    what = "latents" if isinstance(about, Latents) else "token grids"
    done = (
        f"{out}: {counts['train']:,} training and {counts['validation']:,} held-out {what} of shape {list(about.shape)}, "
        f"{si(size, 1024)}B; {len(prepared.labels)} labels\n"
    )
    if not isinstance(about, Latents):
        return f"{done}next: a recipe with objective discrete and --config.data.name=latents --config.data.path={out}"
    return (
        f"{done}mean per channel {', '.join(f'{each:.3g}' for each in about.shift)}, standard deviation {1 / about.scale:.4g}: "
        f"{f'scale and shift as in {like}' if like else 'models see mean 0 and variance 1'}\n"
        f"next: tinygen train --config=microdit_xl_latent --config.data.path={out}"
    )


def scale_of(like: Path, found: Autoencoder) -> tuple[float, tuple[float, ...]]:
    """(scale, shift) of other latents. Raises UserError if they are from another autoencoder."""
    other = sources.Prepared.read(like.expanduser()).latents
    if not isinstance(other, Latents) or found.codes:
        raise UserError(f"--like={like}: tokens have no scale; omit --like")
    if other.sha256 != found.sha256:
        source = f"{other.name} (sha256 {other.sha256[:16]})"
        raise UserError(f"--like={like} was made by {source}, not by {found.name} ({found.sha256[:16]})")
    return other.scale, other.shift


def check_images(codec: Codec, found: Autoencoder) -> tuple[int, int, int]:
    """The shape of an image. Raises UserError for data that the autoencoder cannot encode."""
    shape = codec.spec["x"].shape if "x" in codec.spec else ()
    if not codec.comparable or len(shape) != 3:
        raise UserError(f"--config has {codec.noun} data, but the autoencoder encodes images")
    height, width, channels = shape
    if channels != found.image_channels:
        cure = f"Set --config.data.channels={found.image_channels} if the data set has this key, or use another autoencoder."
        raise UserError(f"the images have {channels} channels, but the autoencoder {found.name} needs {found.image_channels}.\n{cure}")
    if height % found.factor or width % found.factor:
        near = pixels.shown([max(1, round(side / found.factor)) * found.factor for side in (height, width)])
        cure = f"Set --config.data.size={near} if the data set has this key."
        raise UserError(
            f"the image size {height}x{width} is not a multiple of {found.factor}, the autoencoder's downsampling factor.\n{cure}"
        )
    return height, width, channels


def check_disk_space(out: Path, source: DataSource, shape: tuple[int, int, int], found: Autoencoder) -> None:
    """Raises UserError if the latents do not fit on the disk."""
    num = len(source.splits["train"]) * (2 if source.flip else 1) + len(source.splits["validation"])
    needed = num * 4 * found.channels * (shape[0] // found.factor) * (shape[1] // found.factor)
    free = free_bytes(epath.Path(out.absolute()))
    if free is not None and needed + GAP > free:
        raise UserError(f"--out={out}: {num:,} latents need {si(needed, 1024)}B, but only {si(free, 1024)}B are free")


def provenance(config: Config, source: DataSource, found: Autoencoder, autoencoder: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """The metadata of the latents that is known before they are encoded."""
    origin = os.path.abspath(autoencoder)
    if not os.path.isfile(autoencoder):  # a run, whose training may continue: name the checkpoint
        origin = str(store.find(autoencoder, option="--autoencoder").folder)
    data = config.data.to_dict()
    if data.get("path"):  # independent of the current folder
        data["path"] = os.path.abspath(os.path.expanduser(data["path"]))
    return dict(
        name=found.name, sha256=found.sha256, source=origin, factor=found.factor, image=shape, data=data,
        images=source.fingerprint,
    )  # fmt: skip


def write(
    folder: Path,
    source: DataSource,
    encode: Encode,
    block: int,
    about: dict[str, Any],
    fixed: tuple[float, tuple[float, ...]] | None,
    codes: int,
) -> sources.Prepared:
    """Encodes both splits into the folder, `block` images at a time, and returns the content of its `latents.json`.

    codes: of tokens; 0 = latents
    fixed: scale and shift to use instead of measured ones
    """
    digest, moments, sizes = hashlib.sha256(), Moments(), {}
    counts: dict[str, int] = dict.fromkeys(sources.SPLITS, 0)
    for split in sources.SPLITS:
        path = sources.file_of(folder, split)
        try:
            writer = ArrayRecordWriter(str(path), "group_size:1")  # for random access
            for encoded, batch, captions in encode_split(source, split, encode, block):
                if codes:
                    content = sources.tokens_of(encoded)
                else:
                    content = sources.posterior(*encoded)
                    if split == "train":
                        moments.add(*encoded)
                labels = batch.get("label", np.full(len(content), -1))
                for record in map(sources.packed, content, labels, captions):
                    writer.write(record)
                    digest.update(record)
                counts[split] += len(content)
            writer.close()
        except RuntimeError as error:  # raised by array_record, for example if the disk is full
            raise UserError(f"{path} cannot be written: {str(error)[:160]}") from error
        sizes[split] = path.stat().st_size
    domain: Encoded
    if codes:
        domain = Tokens(**about, codes=codes)
    else:
        scale, shift = fixed or moments.scale_and_shift()
        domain = Latents(**about, scale=scale, shift=shift)
    prepared = sources.Prepared(
        latents=domain, labels=source.codec.labels, counts=counts, sizes=sizes,
        fingerprint=digest.hexdigest()[:16],
    )  # fmt: skip
    prepared.write(folder)
    return prepared


def encode_split(source: DataSource, split: str, encode: Encode, block: int) -> Iterator[tuple[Any, Batch, list[str]]]:
    """Yields (what `encode` gives, batch, captions) of a split's images in order, with a progress bar."""
    examples = source.splits[split]
    mirrored = (False, True) if source.flip and split == "train" else (False,)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(f"encoding {split}", total=len(examples) * len(mirrored))
        for mirror in mirrored:
            for first in range(0, len(examples), block):
                indices = np.arange(first, min(first + block, len(examples)))
                batch = examples.take(indices)
                yield encode(batch["x"][:, :, ::-1] if mirror else batch["x"]), batch, examples.captions(indices)
                progress.advance(task, len(indices))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also removes the partial folder
    sys.exit(main())
