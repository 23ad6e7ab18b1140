"""`tinygen eval-fid`: scores samples against a reference and records each score with its protocol."""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging
from etils import epath

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import checksums, store
from tinygen.checkpoints import weights as trained
from tinygen.data.captions.embedded import carried_over
from tinygen.data.source import DataSource
from tinygen.distributed import mesh, processes
from tinygen.errors import UserError
from tinygen.evaluation import compare, generated, grid, references
from tinygen.evaluation.features import load
from tinygen.evaluation.features.collecting import collected, forget
from tinygen.evaluation.features.extraction import Extractor, extractor
from tinygen.evaluation.features.network import Network
from tinygen.evaluation.images import Pictures, of_folder, of_npz
from tinygen.evaluation.metrics.frechet import too_few
from tinygen.evaluation.metrics.protocol import fingerprint
from tinygen.evaluation.scores import NOTE, Score, Side, chosen, note, rules, shortage
from tinygen.pretrained import latents
from tinygen.sampling.settings import configured, find, guidance, stepping
from tinygen.system.terminal import say
from tinygen.workdir import files
from tinygen.workdir.manifest import data_difference

NUM = 50_000  # samples of a checkpoint, as in published results
MOST = 10_000_000  # samples; more is a typing error


class Task(NamedTuple):
    """What all scores of one call share."""

    using: Extractor
    scores: Mapping[str, Score]
    reference: Side
    left_out: int  # reference files that could not be decoded
    record: epath.Path | None  # file to append to; None = print only


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
    out: str | None = None,
) -> int:
    """Scores the samples of a checkpoint, or those in a folder or a file, and prints each score.

    A checkpoint's scores are appended to its workdir's eval.jsonl, or to `out`; scores of files only to `out`.

    settings: overrides of the recipe's sampler settings
    points: {setting: values}; every combination is scored
    autoencoder: as in `find`
    out: a file to which scores are appended, or a folder whose eval.jsonl they are appended to
    """
    if (ckpt is None) == (samples is None):
        raise UserError("give the samples: either --ckpt, a run's workdir, or --samples, a folder of images or an .npz file")
    # Weights may have to be downloaded, so everything else is checked first.
    network = functools.cache(functools.partial(load.load, features, preset=preset, weights=weights))
    wanted = chosen(scores, network, "--scores")
    record = None if out is None else _record(out)
    if samples is not None:
        return _score_files(samples, ref, num, network, wanted, force, record)
    saved = find(str(ckpt), step, autoencoder)
    config = configured(saved.config, settings, saved.codec)
    parts = build.parts(config, saved.codec)
    generated.check_draws_pictures(parts, config.objective.name)
    plans = [planned(saved, {**settings, **point}) for point in grid.combinations(points)]  # all are valid before the first is drawn
    found = references.find(ref or "train", network, functools.partial(_data_of, config, saved))
    number = NUM if num is None else num
    check_num(number, network, wanted, force)
    using = extractor(network(), parts.layout)
    task = _task(found, using, wanted, record or saved.workdir / compare.RECORD)
    labelled = found.examples if found.conditions == saved.codec.conditions else None  # another data set's labels mean something else
    cond, rule = generated.conditions(saved.codec, labels or (["data"] if labelled is not None else ["all"]), number, labelled)
    sums, given = identity(saved), generated.facts_of(cond, found.pictures)
    tree = trained.load(saved, parts, ema=ema)
    values, scored = [], []
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
        values.append(score(drawn, sampling, subject, task, keep=len(plans) > 1))
        scored.append(drawn)
    for each in scored if len(plans) > 1 else ():  # only now: an interrupted grid reuses its features
        forget(using.network, each)
    if points and processes.leads():
        show_grid(points, values, saved.workdir / "eval-fid-grid.png")
    return 0


def planned(saved: store.Saved, settings: Mapping[str, Any]) -> tuple[config_lib.Config, build.Parts, int | None]:
    """(configuration, parts, network evaluations per sample) for sampler settings. Raises UserError for invalid ones."""
    config = configured(saved.config, settings, saved.codec)
    parts = build.parts(config, saved.codec)
    return config, parts, parts.objective.evaluations(conditional=saved.codec.guided)


def _record(out: str) -> epath.Path:
    """Raises UserError if --out is not a file that can be appended to."""
    path = compare.record(out)
    if not path.parent.is_dir():
        raise UserError(f"--out={out}: there is no folder {path.parent}")
    if path.exists() and "://" not in out and not os.path.isfile(path):
        raise UserError(f"--out={out} is not a regular file")
    return path


def _score_files(
    path: str, ref: str | None, num: int | None, network: Callable[[], Network], wanted: Mapping[str, Score], force: bool,
    record: epath.Path | None,
) -> int:  # fmt: skip
    """Scores pictures in a folder or a file."""
    if ref is None:
        raise UserError("--ref is missing: compare --samples with a folder, an .npz file, or a data set such as digits")
    pictures = of_folder(path, "--samples") if os.path.isdir(path) else of_npz(path, "--samples")
    if pictures is None:
        raise UserError(f"--samples={path} holds no pictures (arr_0, uint8 [N, H, W, 3])")
    if num is not None and num > pictures.num:
        raise UserError(f"--num={num}: {path} holds {pictures.num} pictures")
    pictures = pictures if num is None else pictures.first(num)
    found = references.find(ref, network, None)
    check_num(pictures.num, network, wanted, force)
    using = extractor(network(), mesh.Layout(mesh.make_mesh(trained.EVERYWHERE["mesh"])))
    task = _task(found, using, wanted, record)
    score(pictures, {"samples": "files"}, {"samples": path, "samples_fingerprint": pictures.fingerprint}, task)
    return 0


def check_num(num: int, network: Callable[[], Network], wanted: Mapping[str, Score], force: bool) -> None:
    """Raises UserError for too few samples; with `force`, too few for a Fréchet distance is only a warning."""
    if num > MOST:
        raise UserError(f"--num={num}: {MOST:,} samples at most")
    if problem := shortage(wanted, num):
        raise UserError(f"--num={num}: {problem}")
    if "fd" in wanted and (problem := too_few(num, network().dim)):
        if not force:
            raise UserError(f"--num={num}: {problem}.\nTake more, or other --scores (kid has no such bias), or give --force.")
        logging.warning("%s", problem)


def _data_of(config: config_lib.Config, saved: store.Saved) -> DataSource:
    """The data of a run, or the images behind latents. Logs a warning if the data have changed."""
    codec = saved.codec
    if images := latents.originals(codec.domain, "Give other pictures to compare with: --ref=FOLDER, FILE.npz or a data set."):
        if config.text.embeddings:  # which were prepared for the latents
            return carried_over(build.data_source(config_lib.change(config, {"data": {"overfit": 0}}), codec, prepares=False), images)
        return build.captioned(config, images, codec)
    with processes.lead_first("data"):
        source = build.data_source(config, codec, prepares=False)
    processes.agree("the data", source.fingerprint)
    if why := data_difference(files.folder(saved.workdir), saved.manifest.get("data_fingerprint", source.fingerprint), source):
        logging.warning("The data of %s have changed since it was trained (%s): scores compare with the present data", saved.workdir, why)
    return source


def _task(found: references.Found, using: Extractor, wanted: Mapping[str, Score], record: epath.Path | None) -> Task:
    """The task, with the features of the reference if the scores need them. Raises UserError if it has too few pictures for them."""
    side, pictures = found.statistics, found.pictures
    comparing = [name for name, each in wanted.items() if "pictures" in each.needs]
    if side is None or comparing:
        if pictures is None:
            raise UserError(f"--scores={comparing[0]} compares pictures, and --ref={side and side.name} holds only a mean and a covariance")
        if problem := shortage(wanted, pictures.num, reference=True):
            raise UserError(f"the reference {pictures.name} holds {pictures.num} pictures: {problem}")
        if side is None and "fd" in wanted and (problem := too_few(pictures.num, using.network.dim)):
            logging.warning("the reference %s: %s", pictures.name, problem)
        with collected(pictures, using, f"reference {pictures.name}", keep=True, reference=True) as own:
            side = own if side is None else dataclasses.replace(side, features=own.features)
    return Task(using, wanted, side, pictures.left_out if pictures else 0, record)


def identity(saved: store.Saved) -> str:
    """Distinguishes a checkpoint from an earlier one of the same step in the workdir: its checksums, or else its time."""
    sums = saved.folder.read(checksums.SUMS, files.TEXT)
    return sums.decode("utf-8", "replace") if sums is not None else str(saved.folder.path().stat().mtime)


def score(pictures: Pictures, sampling: Mapping[str, Any], subject: Mapping[str, Any], task: Task, keep: bool = False) -> dict[str, float]:
    """Prints scores and appends them with their protocol to the record. Returns them; {} except on the coordinator.

    sampling: how the pictures were drawn; part of the protocol
    subject: which samples they are; scores that differ only in this are comparable
    keep: keep the features for a later call
    """
    network, reference = task.using.network, task.reference
    logits = any("logits" in each.needs for each in task.scores.values())
    left_out = {"left_out": pictures.left_out, "reference_left_out": task.left_out}
    protocol = {
        "features": network.name, "weights_sha256": network.sha256, "preset": network.preset, "quantised": "uint8",
        "rules": rules(pictures.num, reference.num), "reference": reference.fingerprint, "reference_num": reference.num,
        "num": pictures.num, **{name: num for name, num in left_out.items() if num}, **sampling,
    }  # fmt: skip
    remark = note(pictures.num, reference.num, network) if "fd" in task.scores else ""
    values: dict[str, float] = {}
    with collected(pictures, task.using, pictures.name, logits=logits, keep=keep, reference=False) as side:
        if not processes.leads():
            return {}
        for each in task.scores.values():
            values |= each.compute(side, reference, network)
        line = {
            **subject, "time": time.strftime("%Y-%m-%dT%H:%M:%S"), **values, **({NOTE: remark} if remark else {}),
            "reference_name": reference.name, "protocol": protocol, "fingerprint": fingerprint(protocol),
        }  # fmt: skip
        if task.record is not None:  # before the features are deleted
            files.folder(task.record.parent).append(task.record.name, json.dumps(line) + "\n")
    against = f"{reference.num:,} pictures of {reference.name}" if reference.num else reference.name
    preset = "" if network.preset == network.name else f", {network.preset}"
    say(f"{pictures.num:,} samples of {pictures.name}, against {against} (features: {network.name}{preset})")
    say("\n".join(formatted(values, remark)))
    if task.record is not None:
        say(f"  protocol {line['fingerprint']}, in {task.record}")
    else:
        say(f"  protocol {line['fingerprint']}: {', '.join(f'{field} {value}' for field, value in protocol.items())}")
        say("  not recorded: --out=FILE appends them to a file, for --compare")
    return values


def show_grid(points: Mapping[str, Sequence[Any]], values: Sequence[Mapping[str, float]], path: epath.Path) -> None:
    """Prints and plots the first score of every combination."""
    name = next(iter(values[0]))
    first = [each[name] for each in values]
    say(grid.table(points, first, name))
    if grid.plot(points, first, name, path):
        say(f"plot: {path}")


def formatted(values: Mapping[str, float], remark: str = "") -> list[str]:
    """One line per score, with its standard error.

    remark: caveat about the Fréchet distance
    """
    lines = []
    for name, value in values.items():
        if name.endswith(compare.APART):
            continue
        distance = name == "fid" or name.startswith("fd_")
        text = f"  {name:<20} {value:.5g}"
        if f"{name}_stderr" in values:
            text += f" ± {values[f'{name}_stderr']:.2g}"
        elif distance:
            text += " (no standard error: too few samples)"
        text += f" (subsets spread by {values[f'{name}_std']:.2g})" if f"{name}_std" in values else ""
        if f"{name}_infinity" in values:
            text += f"; of infinitely many samples {values[f'{name}_infinity']:.5g}"
        lines.append(text + (f" [{remark}]" if remark and distance else ""))
    return lines
