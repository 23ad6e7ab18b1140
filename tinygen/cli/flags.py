"""Flags of the subcommands: names, defaults and help texts."""

import functools

from absl import flags

from tinygen.config.objectives import SAMPLERS
from tinygen.config.schema import SCHEMA

SHELLS = ("bash", "zsh", "fish")
# Flags that override the recipe's config.objective.NAME
DENOISING = ("nfe", "guidance", "sampler", "time_grid", "shift", "tolerance")
WRITING = ("new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def recipe(values: flags.FlagValues) -> None:
    flags.DEFINE_string("config", None, "Recipe: NAME[:VARIANT] (see 'tinygen recipes') or PATH.py[:VARIANT].", flag_values=values)
    flags.DEFINE_string("workdir", None, "Folder of the run; an existing run resumes. Default: runs/<recipe>.", flag_values=values)


def train(values: flags.FlagValues) -> None:
    recipe(values)
    flags.DEFINE_boolean(
        "describe", False, "Dry run: print data, parameters, FLOPs, memory and advice on shapes, then exit.", flag_values=values
    )


def ckpt(values: flags.FlagValues) -> None:
    flags.DEFINE_string("ckpt", None, "Workdir of a run, its checkpoints folder, or one checkpoint in it.", flag_values=values)
    flags.DEFINE_integer("step", None, "Step of the checkpoint. Default: the newest.", flag_values=values)
    flags.DEFINE_string("distributed", "", "Multi-process: auto, or HOST:PORT,PROCESSES,PROCESS.", flag_values=values)
    timeout = SCHEMA["distributed_timeout"].default
    flags.DEFINE_integer("distributed_timeout", timeout, "Seconds to wait for other processes.", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("ema", True, "Use the averaged weights; --noema uses the raw ones.", flag_values=values)


def _autoencoder(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "autoencoder", None, "Decoder of the run's latents, if it has moved: a .safetensors file or a run.", flag_values=values
    )


def sample(values: flags.FlagValues) -> None:
    ckpt(values)
    _autoencoder(values)
    flags.DEFINE_integer(
        "num",
        None,
        "Number of samples; sample i does not depend on it. Default: 64, or one per line of --prompts, or for text one per --prompt.",
        flag_values=values,
    )
    flags.DEFINE_list(
        "labels", None, "Labels by number or name, cycled over the samples: 3,7 or 'blond'. Default: all labels.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "prompt",
        [],
        "Caption of an image, or beginning of a text; repeatable. Default: held-out captions, or an empty prompt for text.",
        flag_values=values,
    )
    flags.DEFINE_string("prompts", None, "File of prompts, one per line.", flag_values=values)
    flags.DEFINE_string("negative", None, "Negative prompt for guidance. Default: the null condition.", flag_values=values)
    flags.DEFINE_string("encoder", None, "Folder of the run's text encoder, if it has moved.", flag_values=values)
    _sampler(values)
    _writing(values)
    flags.DEFINE_integer("seed", 0, "Seed of the noise.", lower_bound=0, upper_bound=2**32 - 1, flag_values=values)
    flags.DEFINE_integer("batch_size", 64, "Samples per batch; affects speed and memory, not the samples.", flag_values=values)
    flags.DEFINE_string("out", None, "Output folder. Default: <workdir>/sampled/<step>.", flag_values=values)


def _sampler(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("nfe", None, "Network evaluations per sample, including guidance. Default: the recipe's.", flag_values=values)
    flags.DEFINE_float("guidance", None, "Guidance weight; 1 is off. Default: the recipe's.", flag_values=values)
    text, real = functools.partial(flags.DEFINE_string, flag_values=values), functools.partial(flags.DEFINE_float, flag_values=values)
    samplers = ", ".join(SAMPLERS)
    text("sampler", None, f"Sampler: {samplers}; average only for MeanFlow. Default: the recipe's.")
    text("time_grid", None, "Time steps, except for dopri5: uniform, logit_normal or shifted. Default: the recipe's.")
    real("shift", None, "Shift of --time_grid=shifted; larger values put more steps near noise. Default: the recipe's.")
    real("tolerance", None, "Error tolerance per step of --sampler=dopri5. Default: the recipe's.")


def _writing(values: flags.FlagValues) -> None:
    number, real = functools.partial(flags.DEFINE_integer, flag_values=values), functools.partial(flags.DEFINE_float, flag_values=values)
    number("new_tokens", None, "Maximum new tokens per text, excluding the prompt. Default: the recipe's.")
    real("temperature", None, "Sampling temperature for text; 0 is greedy. Default: the recipe's.")
    number("top_k", None, "Sample text from the k most likely tokens; 0 disables it. Default: the recipe's.")
    real(
        "top_p",
        None,
        "Nucleus sampling: keep the smallest set of tokens whose probability sums to at least p; 1 disables it. Default: the recipe's.",
    )
    real(
        "min_p",
        None,
        "Drop tokens less likely than this share of the most likely token's probability; 0 disables it. Default: the recipe's.",
    )
    real("repetition_penalty", None, "Penalty on tokens that have already occurred; 1 disables it. Default: the recipe's.")
    flags.DEFINE_multi_string("stop", [], "Stop sequence, excluded from the text; repeatable.", flag_values=values)


def eval_fid(values: flags.FlagValues) -> None:
    ckpt(values)
    _autoencoder(values)
    values["ckpt"].help = "Score samples of a run: its workdir, its checkpoints folder, or one checkpoint in it."
    text, number = functools.partial(flags.DEFINE_string, flag_values=values), functools.partial(flags.DEFINE_integer, flag_values=values)
    text("samples", None, "Score existing images: a folder, or an .npz file (arr_0, uint8 [N, H, W, C]).")
    text(
        "ref",
        None,
        "Reference: train or validation (of the run's data), a data set NAME[:SPLIT], a folder, or an .npz file of images or of statistics "
        "(mu, sigma). Default for --ckpt: train.",
    )
    number("num", None, "Number of samples. Default: 50,000 for --ckpt, all for --samples.")
    flags.DEFINE_list(
        "scores",
        ["fd"],
        "Comma-separated: fd (Fréchet distance), kid, pr (precision, recall), dc (density, coverage), is.",
        flag_values=values,
    )
    text("features", "inception", "Feature extractor: inception (FID), efflite0 (FD-EffLite0), or the workdir of a classifier.")
    flags.DEFINE_enum(
        "preset",
        None,
        ["adm", "pytorch-fid", "clean"],
        "Preprocessing of images for Inception: resizing and scaling. Default: adm.",
        flag_values=values,
    )
    text("weights", None, "Weights file of Inception: .pth, .npz or .safetensors. Default: the standard location, or a download.")
    flags.DEFINE_list(
        "labels", None, "Labels of the samples: data (as frequent as in the reference), all (in turn), or numbers or names, cycled. "
        "Default: data if the reference is a split of the run's data, otherwise all.",
        flag_values=values,
    )  # fmt: skip
    _sampler(values)
    number("seed", 0, "Seed of the noise.", lower_bound=0, upper_bound=2**32 - 1)
    number("batch_size", 64, "Samples per batch; affects speed and memory, not the samples.", lower_bound=1)
    flags.DEFINE_boolean(
        "force", False, "Score even too few samples; the distance is then biased upwards and called fd_inception.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "grid", [], "Score every combination of settings and plot them: --grid guidance=1,1.5,2 nfe=4,25.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "compare",
        [],
        "Compare the newest scores of two workdirs or --out files: --compare A B. Different protocols are refused.",
        flag_values=values,
    )
    text(
        "out",
        None,
        "File to append scores to, or a folder for eval.jsonl. Default: the run's workdir for --ckpt, none for --samples.",
    )
    flags.DEFINE_list("allow", [], "Protocol fields that may differ in --compare.", flag_values=values)


def report(values: flags.FlagValues) -> None:
    flags.DEFINE_list("workdir", None, "Workdirs, comma-separated: several runs are shown side by side.", flag_values=values)
    default = "<workdir>/report.html; for several runs report-A-B.html next to the first workdir"
    flags.DEFINE_string("out", None, f"Output file. Default: {default}.", flag_values=values)


def recipes(values: flags.FlagValues) -> None:
    text = functools.partial(flags.DEFINE_string, flag_values=values)
    text("name", None, "Show the description of this recipe: size, time and results.")
    text("copy", None, "Copy this recipe to a file for editing.")
    text("out", None, "Output file of --copy. Default: NAME.py in the current folder.")


def keys(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "prefix", None, "A section, row or key, or a prefix of one: optim, model.microdit, lr. Default: all.", flag_values=values
    )


def completion(values: flags.FlagValues) -> None:
    flags.DEFINE_enum("shell", None, SHELLS, "Shell to complete for.", flag_values=values)
