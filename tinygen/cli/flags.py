"""Flags of the subcommands: names, defaults and help texts."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from absl import flags

from tinygen.config.key import Key
from tinygen.config.objectives import OBJECTIVES
from tinygen.config.schema import SCHEMA

SCORING, TIMEOUT = SCHEMA["eval"], SCHEMA["distributed_timeout"]
SHELLS = ("bash", "zsh", "fish")
# Flags that override the recipe's config.objective.NAME
DENOISING = ("nfe", "guidance", "sampler", "time_grid", "shift", "tolerance")
TOKENS = ("temperature", "temperature_decay", "top_k", "top_p", "schedule", "choice_temperature", "remask")
TOKENS += ("proportion", "proportion_decay", "min_steps")
WRITING = ("new_tokens", "min_p", "repetition_penalty")

STRING, INTEGER, BOOLEAN, ENUM = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_boolean, flags.DEFINE_enum
LIST, REPEATED = flags.DEFINE_list, flags.DEFINE_multi_string
Flag: TypeAlias = functools.partial[Any]  # of one of these; the missing argument is `flag_values`


def defined(declared: Sequence[Flag]) -> flags.FlagValues:
    """The flags with their defaults."""
    values = flags.FlagValues()
    for define in declared:
        define(flag_values=values)
    return values


def _words(key: Key) -> str:
    """A key's meaning and constraint as a sentence."""
    words = "; ".join(filter(None, [key.meaning, key.constraint]))
    return f"{words[0].upper()}{words[1:]}."


def _overrides(objective: str, names: Sequence[str]) -> Iterator[Flag]:
    """Flags that override keys of an objective, in the words of the schema."""
    kinds = {int: INTEGER, float: flags.DEFINE_float, str: STRING}
    for name in names:
        key = OBJECTIVES[objective][name]
        yield Flag(kinds[type(key.default)], name, None, f"{_words(key)} Default: the recipe's.")


RECIPE = (
    Flag(STRING, "config", None, "Recipe: NAME[:VARIANT] (see 'tinygen recipes') or PATH.py[:VARIANT]."),
    Flag(STRING, "workdir", None, "Folder of the run; an existing run resumes. Default: runs/<recipe>."),
)
TRAIN = (*RECIPE, Flag(BOOLEAN, "describe", False, "Dry run: print data, parameters, FLOPs, memory and advice on shapes, then exit."))
CKPT = (
    Flag(STRING, "ckpt", None, "Workdir of a run, its checkpoints folder, or one checkpoint in it."),
    Flag(INTEGER, "step", None, "Step of the checkpoint. Default: the newest."),
    Flag(STRING, "distributed", "", "Multi-process: auto, or HOST:PORT,PROCESSES,PROCESS."),
    Flag(INTEGER, "distributed_timeout", TIMEOUT.default, "Seconds to wait for other processes.", lower_bound=1),
    Flag(BOOLEAN, "ema", True, "Use the averaged weights; --noema uses the raw ones."),
)
_DRAWING = (
    *CKPT,
    Flag(STRING, "autoencoder", None, "Decoder of the run's latents or tokens, if it has moved: a file of weights or a run."),
    *_overrides("flow", DENOISING),
    *_overrides("discrete", TOKENS),
    Flag(INTEGER, "seed", 0, "Seed of the noise.", lower_bound=0, upper_bound=2**32 - 1),
    Flag(INTEGER, "batch_size", 64, "Samples per batch; affects speed and memory, not the samples.", lower_bound=1),
)
SAMPLE = (
    *_DRAWING,
    Flag(
        INTEGER,
        "num",
        None,
        "Number of samples; sample i does not depend on it. Default: 64, or one per line of --prompts or, for text, per --prompt.",
        lower_bound=1,
    ),
    Flag(LIST, "labels", None, "Labels by number or name, cycled over the samples: 3,7 or 'blond'. Default: all labels."),
    Flag(
        REPEATED,
        "prompt",
        [],
        "Caption of an image, or beginning of a text; repeatable. Default: held-out captions, or for text an empty prompt.",
    ),
    Flag(STRING, "prompts", None, "File of prompts, one per line."),
    Flag(STRING, "negative", None, "Negative prompt for guidance. Default: the null condition."),
    Flag(STRING, "encoder", None, "Folder of the run's text encoder, if it has moved."),
    *_overrides("autoregressive", WRITING),
    Flag(STRING, "given", None, "Image file whose transparent pixels are drawn, or text in which {20} is a gap of 20 tokens."),
    Flag(BOOLEAN, "history", False, "Also write history.gif: the first 16 samples after each step, for models of tokens."),
    Flag(REPEATED, "stop", [], "Stop sequence, excluded from the text; repeatable."),
    Flag(STRING, "out", None, "Output folder. Default: <workdir>/sampled/<step>."),
)
EVAL_FID = (
    *_DRAWING,
    Flag(STRING, "samples", None, "Score existing images: a folder, or an .npz file (arr_0, uint8 [N, H, W, C])."),
    Flag(
        STRING,
        "ref",
        None,
        "Reference: train or validation (of the run's data), a data set NAME[:SPLIT], a folder, or an .npz file of images or "
        "of statistics (mu, sigma). Default for --ckpt: train.",
    ),
    Flag(INTEGER, "num", None, "Number of samples. Default: 50,000 for --ckpt, all for --samples."),
    Flag(LIST, "scores", ["fd"], _words(SCORING["scores"])),
    Flag(STRING, "features", "inception", "Feature extractor: inception (FID), efflite0 (FD-EffLite0), or a classifier's workdir."),
    Flag(ENUM, "preset", None, SCORING["preset"].choices, "Resizing and scaling of images for Inception. Default: adm."),
    Flag(STRING, "weights", None, "Weights of Inception: .pth, .npz or .safetensors. Default: the usual place, or a download."),
    Flag(
        LIST,
        "labels",
        None,
        "Labels of the samples: data (as frequent as in the reference), all (in turn), or numbers or names, cycled. "
        "Default: data if the reference is a split of the run's data, otherwise all.",
    ),
    Flag(BOOLEAN, "force", False, "Score even too few samples; the distance, biased upwards, is then called fd_inception."),
    Flag(REPEATED, "grid", [], "Score every combination of settings and plot them: --grid guidance=1,1.5,2 nfe=4,25."),
    Flag(REPEATED, "compare", [], "Compare the newest scores of two workdirs or --out files, A and B; different protocols are refused."),
    Flag(STRING, "out", None, "File to append scores to, or a folder for eval.jsonl. Default: the run's workdir, if any."),
    Flag(LIST, "allow", [], "Protocol fields that may differ in --compare."),
)
REPORT = (
    Flag(LIST, "workdir", None, "Workdirs, comma-separated: several runs are shown side by side."),
    Flag(STRING, "out", None, "Output file. Default: <workdir>/report.html; for several runs report-A-B.html beside the first."),
)
RECIPES = (
    Flag(STRING, "name", None, "Show the description of this recipe: size, time and results."),
    Flag(STRING, "copy", None, "Copy this recipe to a file for editing."),
    Flag(STRING, "out", None, "Output file of --copy. Default: NAME.py in the current folder."),
)
KEYS = (Flag(STRING, "prefix", None, "A section, row or key, or a prefix of one: optim, model.microdit, lr. Default: all."),)
COMPLETION = (Flag(ENUM, "shell", None, SHELLS, "Shell to complete for."),)
