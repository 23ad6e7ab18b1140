"""`tinygen eval-fid`: scores of samples against a reference, each beside the protocol that it was measured by."""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging
from etils import epath

from tinygen import build, checkpoint, networks, processes, sample, seals, trained
from tinygen import config as schema
from tinygen.data.base import DataSource
from tinygen.data.codec import Codec
from tinygen.data.embedded_captions import carried_over
from tinygen.data.embeddings import Embedded
from tinygen.errors import UserError
from tinygen.sampler_settings import configured, guidance, stepping
from tinygen.scores.frechet import too_few
from tinygen.scores.network import Network
from tinygen.scores.protocol import fingerprint
from tinygen.scoring import generated, grid, references
from tinygen.scoring.collecting import collected, forget
from tinygen.scoring.extraction import Extractor, extractor
from tinygen.scoring.pictures import Pictures, of_folder, of_npz
from tinygen.scoring.scores import RULES, Score, Side, chosen, shortage
from tinygen.sharding import Layout, make_mesh
from tinygen.workdir.files import TEXT, folder

NUM = 50_000  # samples of a checkpoint, as published numbers have it
MOST = 10_000_000  # samples; more is a slip


class Given(NamedTuple):
    """Samples that are to be scored.

    sampling: how they came to be, as far as it belongs to the protocol
    subject: what they are: in this two scores that are compared may differ
    """

    pictures: Pictures
    sampling: dict[str, Any]
    subject: dict[str, Any]


class Task(NamedTuple):
    """What all scores of one call have in common.

    record: the eval.jsonl that they are appended to
    """

    using: Extractor
    scores: Mapping[str, Score]
    reference: Side
    record: epath.Path


def main(
    *,
    ckpt: str | None,
    samples: str | None,
    ref: str | None,
    num: int | None,
    scores: Sequence[str],
    features: str,
    preset: str | None,
    weights: str | None,
    step: int | None,
    ema: bool,
    labels: Sequence[str],
    settings: Mapping[str, Any],
    points: Mapping[str, Sequence[Any]],
    seed: int,
    batch_size: int,
    force: bool,
    autoencoder: str | None = None,
) -> int:
    """Scores the samples of a checkpoint, or those in a folder or a file; prints each score and appends it to eval.jsonl.

    settings: sampler settings in place of the recipe's, options.DENOISING
    points: {setting: values}: every combination is scored
    autoencoder: as for `sample.find`
    """
    if (ckpt is None) == (samples is None):
        raise UserError("give what is scored: either --ckpt, a run's workdir, or --samples, a folder of images or an .npz file")
    # Weights may have to be downloaded: whatever else can be wrong is told before.
    network = functools.cache(functools.partial(networks.load, features, preset=preset, weights=weights))
    wanted = chosen(scores, network, "--scores")
    if samples is not None:
        return _score_files(samples, ref, num, network, wanted, force)
    saved = sample.find(str(ckpt), step, autoencoder)
    config = configured(saved.config, settings, saved.codec)
    parts = build.parts(config, saved.codec)
    generated.check_draws_pictures(parts, config.objective.name)
    plans = [planned(saved, {**settings, **point}) for point in grid.combinations(points)]  # all are sound before the first is drawn
    own = functools.cache(functools.partial(_data_of, config, saved.codec))
    found = references.find(ref or "train", network, own)
    number = NUM if num is None else num
    check_num(number, network, wanted, force)
    using = extractor(network(), parts.layout)
    task = Task(using, wanted, _reference(found, using, wanted), saved.workdir / "eval.jsonl")
    known = (saved.codec.labels, saved.codec.text)
    labelled = found.examples if found.known == known else None  # another data set's labels mean something else
    cond, rule = generated.conditions(saved.codec, labels or (["data"] if labelled is not None else ["all"]), number, labelled)
    sums, given = identity(saved), generated.told_by(cond, found.pictures)
    tree = trained.load(saved, parts, ema=ema)
    values: list[dict[str, float]] = []
    scored: list[Pictures] = []
    for config, parts, evaluations in plans:
        sampling = {
            "labels": rule, "sampler": config.objective.get("sampler"), "nfe": evaluations, **guidance(config, saved.codec),
            **stepping(config), "ema": ema, "precision": build.precision(config),
        }  # fmt: skip
        subject = {"checkpoint": str(saved.workdir), "step": saved.step, "seed": seed}
        drawn = generated.of_model(
            tree, parts, cond, num=number, seed=seed, size=parts.layout.padded(min(batch_size, number)),
            name=f"step {saved.step} of {saved.workdir}", fingerprint=fingerprint({**sampling, **subject, "sums": sums, "given": given}),
        )  # fmt: skip
        values.append(score(Given(drawn, sampling, subject), task, keep=len(plans) > 1))
        scored.append(drawn)
    for each in scored if len(plans) > 1 else ():  # only now: a grid that was interrupted takes up what it has
        forget(using.network, each)
    if points and processes.leads():
        show_grid(points, values, saved.workdir / "eval-fid-grid.png")
    return 0


def planned(saved: checkpoint.Saved, settings: Mapping[str, Any]) -> tuple[schema.Config, build.Parts, int | None]:
    """(configuration, parts, network evaluations a sample) of sampling with some settings. Raises UserError for those that do not do."""
    config = configured(saved.config, settings, saved.codec)
    parts = build.parts(config, saved.codec)
    count = getattr(parts.objective, "evaluations", None)
    return config, parts, count(conditional=saved.codec.conditional) if count else None


def _score_files(
    path: str, ref: str | None, num: int | None, network: Callable[[], Network], wanted: Mapping[str, Score], force: bool
) -> int:
    """Scores pictures that are there already."""
    if ref is None:
        raise UserError("--ref is missing: what --samples are compared with: a folder, an .npz file, or a data set such as digits")
    pictures = of_folder(path, "--samples") if os.path.isdir(path) else of_npz(path, "--samples")
    if pictures is None:
        raise UserError(f"--samples={path} holds no pictures (arr_0, uint8 [N, H, W, 3])")
    if num is not None and num > pictures.num:
        raise UserError(f"--num={num}: {path} holds {pictures.num} pictures")
    pictures = pictures if num is None else pictures.first(num)
    found = references.find(ref, network, None)
    check_num(pictures.num, network, wanted, force)
    using = extractor(network(), Layout(make_mesh(trained.EVERYWHERE["mesh"])))
    folder = epath.Path(path) if os.path.isdir(path) else epath.Path(path).parent
    task = Task(using, wanted, _reference(found, using, wanted), folder / "eval.jsonl")
    score(Given(pictures, {"samples": "files"}, {"samples": path, "samples_fingerprint": pictures.fingerprint}), task)
    return 0


def check_num(num: int, network: Callable[[], Network], wanted: Mapping[str, Score], force: bool) -> None:
    """Raises UserError for too few samples; for a Fréchet distance it may be forced, and is then only said."""
    if num > MOST:
        raise UserError(f"--num={num}: {MOST:,} samples are the most that are taken")
    if problem := shortage(wanted, num):
        raise UserError(f"--num={num}: {problem}")
    if "fd" in wanted and (problem := too_few(num, network().dim)):
        if not force:
            raise UserError(f"--num={num}: {problem}.\nTake more, or other --scores (kid has no such bias), or give --force.")
        logging.warning("%s", problem)


def _data_of(config: schema.Config, codec: Codec) -> DataSource:
    """The data of a run, or the images behind latents."""
    if codec.latents is not None:
        images = references.originals(codec.latents, "Give other pictures to compare with: --ref=FOLDER, FILE.npz or a data set.")
        if isinstance(codec.text, Embedded):  # they are of the latents' fingerprint
            return carried_over(build.data_source(schema.change(config, {"data": {"overfit": 0}}), codec.text), images)
        return build.told(config, images, codec.text)
    with processes.lead_first("data"):
        source = build.data_source(config, codec.text)
    processes.agree("the data", source.fingerprint)
    return source


def _reference(found: references.Found, using: Extractor, wanted: Mapping[str, Score]) -> Side:
    stated, comparing = found.statistics, [name for name, each in wanted.items() if "pictures" in each.needs]
    if stated is not None and not comparing:
        return stated
    if found.pictures is None:
        raise UserError(f"--scores={comparing[0]} compares pictures, and --ref={stated and stated.name} holds only a mean and a covariance")
    if problem := shortage(wanted, found.pictures.num, reference=True):
        raise UserError(f"the reference {found.pictures.name} holds {found.pictures.num} pictures: {problem}")
    if stated is None and "fd" in wanted and (problem := too_few(found.pictures.num, using.network.dim)):
        logging.warning("of the reference %s, %s", found.pictures.name, problem)
    with collected(found.pictures, using, f"reference {found.pictures.name}", keep=True, reference=True) as side:
        if stated is None:
            return side
        return dataclasses.replace(stated, features=side.features)


def identity(saved: checkpoint.Saved) -> str:
    """What tells a checkpoint from another of the same step that the workdir held before: its sums, or its time."""
    sums = saved.folder.read(seals.SUMS, TEXT)
    return sums.decode("utf-8", "replace") if sums is not None else str(saved.folder.path().stat().mtime)


def score(given: Given, task: Task, keep: bool = False) -> dict[str, float]:
    """Prints the scores of some samples and appends them, with their protocol, to eval.jsonl. Returns them; nothing on other processes.

    keep: leave the features for a call that comes after
    """
    network, reference = task.using.network, task.reference
    logits = any("logits" in each.needs for each in task.scores.values())
    protocol = {
        "features": network.name, "weights_sha256": network.sha256, "preset": network.preset, "quantised": "uint8", "rules": RULES,
        "reference": reference.fingerprint, "reference_num": reference.num, "num": given.pictures.num, **given.sampling,
    }  # fmt: skip
    values: dict[str, float] = {}
    with collected(given.pictures, task.using, given.pictures.name, logits=logits, keep=keep, reference=False) as side:
        if not processes.leads():
            return {}
        for each in task.scores.values():
            values |= each.compute(side, reference, network)
        line = {
            **given.subject, "time": time.strftime("%Y-%m-%dT%H:%M:%S"), **values, "reference_name": reference.name,
            "protocol": protocol, "fingerprint": fingerprint(protocol),
        }  # fmt: skip
        folder(task.record.parent).append(task.record.name, json.dumps(line) + "\n")  # before the features are deleted
    against = f"{reference.num:,} pictures of {reference.name}" if reference.num else reference.name
    print(f"{given.pictures.num:,} samples of {given.pictures.name}, against {against} (features: {network.name}, {network.preset})")
    print("\n".join(told(values)))
    print(f"  protocol {line['fingerprint']}, in {task.record}")
    return values


def show_grid(points: Mapping[str, Sequence[Any]], values: Sequence[Mapping[str, float]], path: epath.Path) -> None:
    """Prints the first score of every combination, and draws it."""
    name = next(iter(values[0]))
    first = [each[name] for each in values]
    print(grid.table(points, first, name))
    if grid.plot(points, first, name, path):
        print(f"plot: {path}")


def told(values: Mapping[str, float]) -> list[str]:
    """The scores, a line each, an error beside what it is the error of."""
    lines = []
    for name, value in values.items():
        if name.endswith(("_stderr", "_std", "_infinity")):
            continue
        text = f"  {name:<20} {value:.5g}"
        text += f" ± {values[f'{name}_stderr']:.2g}" if f"{name}_stderr" in values else ""
        text += f" (subsets spread by {values[f'{name}_std']:.2g})" if f"{name}_std" in values else ""
        if f"{name}_infinity" in values:
            text += f"; of infinitely many samples {values[f'{name}_infinity']:.5g}"
        lines.append(text)
    return lines
