"""Encodes the images of a recipe's data once, so that a model can be trained on their latents: data set `latents`.

    python scripts/prepare/prepare_latents.py --config=dit_faces_80m:folder --config.data.path=photos --config.data.size=256 \\
        --autoencoder=vae.safetensors --out=latents/photos
    tinygen train --config=microdit_xl_latent --config.data.path=latents/photos

The autoencoder is a .safetensors file of Stable Diffusion's public ones, or a run of objective autoencoder. Of a recipe only its section
`data` counts, with what --config.data.KEY=VALUE changes of it. Both splits are encoded in their order: each image becomes the mean and the
standard deviation of its posterior, beside its label and caption. Where the recipe mirrors training images (data.flip), mirrored ones
are encoded too, after all others: a latent itself cannot be mirrored. The same command writes the same bytes.

--like=DIR takes scale and shift of other latents, so that a model which learnt those goes on with these: a stage of larger images.

The folder appears when it is whole. Its `latents.json` says what made it: the autoencoder's hash, the images' recipe and fingerprint, and
the scale and shift, measured over the training latents, that bring them to mean 0 and variance 1.
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
from tinygen.data.domain import Latents, Moments
from tinygen.data.images import pixels
from tinygen.data.source import DataSource
from tinygen.errors import UserError
from tinygen.pretrained import autoencoder as autoencoders
from tinygen.pretrained.autoencoder import Autoencoder
from tinygen.pretrained.latents import at_once, in_batches
from tinygen.profiling.footprint import si
from tinygen.system import malloc, runtime
from tinygen.system.limits import free_bytes

GAP = 2**20  # bytes that are left free on the disk
Encode = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Encodes a recipe's images, for data set 'latents'.", allow_abbrev=False)
    parser.add_argument("--config", required=True, metavar="RECIPE.py[:VARIANT]", help="whose images; --config.data.KEY=VALUE overrides")
    parser.add_argument(
        "--autoencoder",
        required=True,
        type=os.path.expanduser,
        metavar="FILE|RUN",
        help="a .safetensors file, or a run of objective autoencoder",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to be made")
    parser.add_argument("--like", type=Path, metavar="DIR", help="other latents of this autoencoder, whose scale and shift are taken")
    parser.add_argument("--batch_size", type=int, default=0, help="images that a device encodes at once; default: by their size")
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
        print("prepare_latents: interrupted; nothing is left of it", file=sys.stderr)
        return 130
    print(report)
    return 0


def prepare(config: Config, autoencoder: str, out: Path, batch_size: int, like: Path | None = None) -> str:
    """Writes the folder; returns what is said of it. Raises UserError for what would keep it from being of use, before it encodes."""
    if batch_size < 0:
        raise UserError(f"--batch_size={batch_size} must be positive")
    if os.path.lexists(out):
        raise UserError(f"--out={out} is there already: give another, or take it away first")
    found = autoencoders.load(autoencoder, "--autoencoder")
    scale = scale_of(like, found) if like else None
    source = build.data_source(config)
    shape = check_images(source.codec, found)
    check_room(out, source, shape, found)
    each = batch_size or at_once(shape)
    encode = in_batches(found.encode, found.variables, each)
    fresh = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    fresh.mkdir(parents=True)
    try:
        prepared = written(
            fresh, source, encode, each * jax.local_device_count(), provenance(config, source, found, autoencoder, shape), scale
        )
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    about, size = prepared.latents, sum(prepared.sizes.values())
    return (
        f"{out}: {prepared.counts['train']:,} latents to train on, {prepared.counts['validation']:,} held out, {list(about.shape)} each, "
        f"{si(size, 1024)}B; {len(prepared.labels)} labels\n"
        f"mean a channel {', '.join(f'{each:.3g}' for each in about.shift)}, standard deviation {1 / about.scale:.4g}: "
        f"{f'as in {like}' if like else 'a model gets them at mean 0 and variance 1'}\n"
        f"next: tinygen train --config=microdit_xl_latent --config.data.path={out}"
    )


def scale_of(like: Path, found: Autoencoder) -> tuple[float, tuple[float, ...]]:
    """(scale, shift) of other latents, for a model that goes on from them. Raises UserError for those of another autoencoder."""
    other = sources.Prepared.read(like.expanduser()).latents
    if other.sha256 != found.sha256:
        raise UserError(f"--like={like}: made by {other.name} (sha256 {other.sha256[:16]}), not by {found.name} ({found.sha256[:16]})")
    return other.scale, other.shift


def check_images(codec: Codec, found: Autoencoder) -> tuple[int, int, int]:
    """The shape of an image. Raises UserError for data that the autoencoder does not take."""
    shape = codec.spec["x"].shape if "x" in codec.spec else ()
    if not codec.comparable or len(shape) != 3:
        raise UserError(f"--config: it has {codec.noun} data, and an autoencoder encodes images")
    height, width, channels = shape
    if channels != found.image_channels:
        cure = f"Give --config.data.channels={found.image_channels} where the data set has it, or another autoencoder."
        raise UserError(f"the images have {channels} channels, and the autoencoder {found.name} takes {found.image_channels}.\n{cure}")
    if height % found.factor or width % found.factor:
        near = pixels.shown([max(1, round(side / found.factor)) * found.factor for side in (height, width)])
        cure = f"Give --config.data.size={near} where the data set has it."
        raise UserError(f"images of {height}x{width} are no multiple of the {found.factor} pixels that a latent's side stands for.\n{cure}")
    return height, width, channels


def check_room(out: Path, source: DataSource, shape: tuple[int, int, int], found: Autoencoder) -> None:
    """Raises UserError where the disk has less room than the latents take."""
    num = len(source.splits["train"]) * (2 if source.flip else 1) + len(source.splits["validation"])
    needed = num * 4 * found.channels * (shape[0] // found.factor) * (shape[1] // found.factor)
    free = free_bytes(epath.Path(out.absolute()))
    if free is not None and needed + GAP > free:
        raise UserError(f"--out={out}: {num:,} latents take {si(needed, 1024)}B, and {si(free, 1024)}B are free there")


def provenance(config: Config, source: DataSource, found: Autoencoder, autoencoder: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """What is known of the latents before they are encoded."""
    place = os.path.abspath(autoencoder)
    if not os.path.isfile(autoencoder):  # a run: it may learn on
        saved = store.find(autoencoder, option="--autoencoder")
        place = str(saved.folder)
    data = config.data.to_dict()
    if data.get("path"):  # as it is found from any folder
        data["path"] = os.path.abspath(os.path.expanduser(data["path"]))
    return dict(
        name=found.name, sha256=found.sha256, source=place, factor=found.factor, image=shape, data=data,
        images=source.fingerprint,
    )  # fmt: skip


def written(
    folder: Path, source: DataSource, encode: Encode, block: int, about: dict[str, Any], given: tuple[float, tuple[float, ...]] | None
) -> sources.Prepared:
    """Encodes both splits into the folder, `block` images at a time; returns what its `latents.json` says.

    given: scale and shift, in place of those that are measured
    """
    digest, moments, sizes = hashlib.sha256(), Moments(), {}
    counts: dict[str, int] = dict.fromkeys(sources.SPLITS, 0)
    for split in sources.SPLITS:
        path = sources.file_of(folder, split)
        try:
            writer = ArrayRecordWriter(str(path), "group_size:1")  # for random access
            for mean, std, batch, captions in encoded(source, split, encode, block):
                if split == "train":
                    moments.add(mean, std)
                labels = batch.get("label", np.full(len(mean), -1))
                for record in map(sources.packed, mean, std, labels, captions):
                    writer.write(record)
                    digest.update(record)
                counts[split] += len(mean)
            writer.close()
        except RuntimeError as error:  # the library's of a disk that is full
            raise UserError(f"{path} cannot be written: {str(error)[:160]}") from error
        sizes[split] = path.stat().st_size
    scale, shift = given or moments.scale_and_shift()
    prepared = sources.Prepared(
        latents=Latents(**about, scale=scale, shift=shift), labels=source.codec.labels, counts=counts, sizes=sizes,
        fingerprint=digest.hexdigest()[:16],
    )  # fmt: skip
    prepared.write(folder)
    return prepared


def encoded(source: DataSource, split: str, encode: Encode, block: int) -> Iterator[tuple[np.ndarray, np.ndarray, Batch, list[str]]]:
    """(means, standard deviations, what else the batch holds, captions) of a split's images in their order, with a progress bar."""
    examples = source.splits[split]
    mirrored = (False, True) if source.flip and split == "train" else (False,)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(f"encoding {split}", total=len(examples) * len(mirrored))
        for mirror in mirrored:
            for first in range(0, len(examples), block):
                indices = np.arange(first, min(first + block, len(examples)))
                batch = examples.take(indices)
                mean, std = encode(batch["x"][:, :, ::-1] if mirror else batch["x"])
                yield mean, std, batch, examples.captions(indices)
                progress.advance(task, len(indices))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # takes the half-written folder away too
    sys.exit(main())
