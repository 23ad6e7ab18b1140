"""The flags of each subcommand: their names, defaults and what `help` says of them."""

import functools

from absl import flags

from tinygen.config.schema import SCHEMA

SHELLS = ("bash", "zsh", "fish")
# Flags that take the place of the recipe's config.objective.NAME
DENOISING = ("nfe", "guidance", "sampler", "time_grid", "shift", "tolerance")
WRITING = ("new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def recipe(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "config", None, "The recipe: NAME[:VARIANT], as 'tinygen recipes' lists them, or PATH.py[:VARIANT].", flag_values=values
    )
    flags.DEFINE_string("workdir", None, "Where the run lives; starting again there resumes. Default: runs/<recipe>.", flag_values=values)


def train(values: flags.FlagValues) -> None:
    recipe(values)
    flags.DEFINE_boolean(
        "describe", False, "Print what would run - data, parameters, FLOPs, memory, advice on shapes - and leave.", flag_values=values
    )


def ckpt(values: flags.FlagValues) -> None:
    flags.DEFINE_string("ckpt", None, "A run's workdir, its checkpoints folder, or one checkpoint in it.", flag_values=values)
    flags.DEFINE_integer("step", None, "Which checkpoint. Default: the newest.", flag_values=values)
    flags.DEFINE_string("distributed", "", "Several processes: auto, or HOST:PORT,PROCESSES,PROCESS.", flag_values=values)
    timeout = SCHEMA["distributed_timeout"].default
    flags.DEFINE_integer("distributed_timeout", timeout, "Seconds to wait for them.", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("ema", True, "Use the averaged weights; --noema uses the raw ones.", flag_values=values)


def _autoencoder(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "autoencoder", None, "What decodes a run's latents, where it has moved: a .safetensors file or a run.", flag_values=values
    )


def sample(values: flags.FlagValues) -> None:
    ckpt(values)
    _autoencoder(values)
    flags.DEFINE_integer(
        "num",
        None,
        "How many samples; sample i is the same whatever their number. Default: 64, or one a line of --prompts, of text one a --prompt.",
        flag_values=values,
    )
    flags.DEFINE_list(
        "labels", None, "Labels by number or name, cycled over the samples: 3,7 or 'blond'. Default: all in turn.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "prompt",
        [],
        "What to draw, in words, or how a text begins; may be repeated. Default: held-out captions, or whole documents.",
        flag_values=values,
    )
    flags.DEFINE_string("prompts", None, "A file of prompts, one a line.", flag_values=values)
    flags.DEFINE_string("negative", None, "What guidance leads away from, in words. Default: no caption.", flag_values=values)
    flags.DEFINE_string("encoder", None, "The folder of a run's text encoder, where that has moved.", flag_values=values)
    _sampler(values)
    _writing(values)
    flags.DEFINE_integer("seed", 0, "Seed of the noise.", lower_bound=0, upper_bound=2**32 - 1, flag_values=values)
    flags.DEFINE_integer("batch_size", 64, "Samples drawn at once; changes speed and memory, not the samples.", flag_values=values)
    flags.DEFINE_string("out", None, "Folder for the files. Default: <workdir>/sampled/<step>.", flag_values=values)


def _sampler(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("nfe", None, "Network evaluations a sample, guidance's included. Default: the recipe's.", flag_values=values)
    flags.DEFINE_float("guidance", None, "Guidance weight; 1 is off. Default: the recipe's.", flag_values=values)
    text, real = functools.partial(flags.DEFINE_string, flag_values=values), functools.partial(flags.DEFINE_float, flag_values=values)
    samplers = "euler, heun, midpoint, rk4, dpmpp_2m, edm_heun, dopri5 or sde; of an average velocity average"
    text("sampler", None, f"The integrator: {samplers}. Default: the recipe's.")
    text("time_grid", None, "Its times, but for dopri5: uniform, logit_normal or shifted. Default: the recipe's.")
    real("shift", None, "Of --time_grid=shifted: the larger, the more steps near the noise. Default: the recipe's.")
    real("tolerance", None, "Of --sampler=dopri5: the error that a step may have. Default: the recipe's.")


def _writing(values: flags.FlagValues) -> None:
    number, real = functools.partial(flags.DEFINE_integer, flag_values=values), functools.partial(flags.DEFINE_float, flag_values=values)
    number("new_tokens", None, "Tokens of a text at most, the prompt not counted. Default: the recipe's.")
    real("temperature", None, "Of text: 1 as learnt, less is safer, 0 takes the most likely token. Default: the recipe's.")
    number("top_k", None, "Of text: draw from the k most likely tokens; 0 is off. Default: the recipe's.")
    real("top_p", None, "Of text: from the fewest that have this probability together; 1 is off. Default: the recipe's.")
    real("min_p", None, "Of text: from those with this share of the most likely one's probability; 0 is off. Default: the recipe's.")
    real("repetition_penalty", None, "Of text: makes tokens that there have been less likely; 1 is off. Default: the recipe's.")
    flags.DEFINE_multi_string("stop", [], "A text ends before this; may be repeated.", flag_values=values)


def eval_fid(values: flags.FlagValues) -> None:
    ckpt(values)
    _autoencoder(values)
    values["ckpt"].help = "Score a run's samples: its workdir, its checkpoints folder, or one checkpoint in it."
    text, number = functools.partial(flags.DEFINE_string, flag_values=values), functools.partial(flags.DEFINE_integer, flag_values=values)
    text("samples", None, "Score pictures that are there: a folder, or an .npz file (arr_0, uint8 [N, H, W, C]).")
    text(
        "ref",
        None,
        "What they are compared with: train or validation (of the run's data), a data set NAME[:SPLIT], a folder, an .npz file of pictures "
        "or of statistics (mu, sigma). Default for --ckpt: train.",
    )
    number("num", None, "How many samples. Default: 50,000 of a checkpoint, all of --samples.")
    flags.DEFINE_list(
        "scores", ["fd"], "fd (Fréchet distance) | kid | pr (precision, recall) | dc (density, coverage) | is.", flag_values=values
    )
    text("features", "inception", "What is compared: inception (FID) | efflite0 (FD-EffLite0) | the workdir of a classifier trained here.")
    flags.DEFINE_enum(
        "preset",
        None,
        ["adm", "pytorch-fid", "clean"],
        "How Inception's pictures are resized and scaled. Default: adm.",
        flag_values=values,
    )
    text("weights", None, "Inception's file: .pth, .npz or .safetensors. Default: where it is kept, or downloaded.")
    flags.DEFINE_list(
        "labels", None, "Labels of the samples: data (as often as the reference has them) | all (in turn) | numbers or names in turn. "
        "Default: data where the reference is a split of it, else all.",
        flag_values=values,
    )  # fmt: skip
    _sampler(values)
    number("seed", 0, "Seed of the samples' noise.", lower_bound=0, upper_bound=2**32 - 1)
    number("batch_size", 64, "Samples drawn at once; changes speed and memory, not the samples.", lower_bound=1)
    flags.DEFINE_boolean(
        "force", False, "Score too few samples as well: the distance is then far too large, and is called fd_inception.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "grid", [], "Score every combination of settings: --grid guidance=1,1.5,2 nfe=4,25; draws a plot.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "compare",
        [],
        "Put the newest scores of two workdirs, or of files that --out named, side by side: --compare A B. Unlike protocols are refused.",
        flag_values=values,
    )
    text(
        "out",
        None,
        "The file that scores are appended to, or a folder for eval.jsonl. Default: a run's workdir for --ckpt, none for --samples.",
    )
    flags.DEFINE_list("allow", [], "Fields of the protocol that may differ in --compare.", flag_values=values)


def report(values: flags.FlagValues) -> None:
    flags.DEFINE_list("workdir", None, "Folders of runs, separated by commas: several are shown side by side.", flag_values=values)
    default = "<workdir>/report.html; for several runs report-A-B.html beside the first one's folder"
    flags.DEFINE_string("out", None, f"The page's file. Default: {default}.", flag_values=values)


def recipes(values: flags.FlagValues) -> None:
    text = functools.partial(flags.DEFINE_string, flag_values=values)
    text("name", None, "Show what this recipe says of itself: its size, time and figures.")
    text("copy", None, "Write this recipe to a file, to be edited.")
    text("out", None, "The file that --copy writes. Default: NAME.py in this folder.")


def keys(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "prefix", None, "A section, a row or a key, or how one begins: optim, model.microdit, lr. Default: all.", flag_values=values
    )


def completion(values: flags.FlagValues) -> None:
    flags.DEFINE_enum("shell", None, SHELLS, "Which shell the script is for.", flag_values=values)
