"""What the words of a command line may become, and how shells ask for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tinygen.cli import completion

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tr", ["train"]),
        ("help eval", ["eval", "eval-fid"]),
        ("train --w", ["--workdir="]),
        ("train --d", ["--describe"]),
        ("train --config=dit_dig", ["--config=dit_digits", "--config=dit_digits8"]),
        ("train --config=dit_pix", ["--config=dit_pixel_faces", "--config=dit_pixel_faces:smoke"]),
        ("train --config=meanflow_digits:", ["--config=meanflow_digits:improved", "--config=meanflow_digits:smoke"]),
        ("train --config=meanflow_digits:improved+", ["--config=meanflow_digits:improved+smoke"]),
        ("train --config meanflow_digits:i", ["meanflow_digits:improved"]),
        ("train --config=no/such.py:", []),
        ("train --config.o", ["--config.objective.", "--config.optim."]),
        ("train --config.optim.w", ["--config.optim.warmup=", "--config.optim.weight_decay="]),
        ("check --config.remat=", ["--config.remat=none", "--config.remat=products", "--config.remat=full"]),
        ("check --config.model.name=m", ["--config.model.name=microdit", "--config.model.name=mlp", "--config.model.name=minigpt"]),
        ("train --config.model.qk_norm=", ["--config.model.qk_norm=true", "--config.model.qk_norm=false"]),
        ("train --config.model.width=", []),
        ("train ", ["--config=", "--workdir=", "--describe", "--config."]),
        ("sample --config.s", []),
        ("sample --ckpt=ru", []),  # the shell's own: files
        ("eval-fid --preset=c", ["--preset=clean"]),
        ("eval-fid --preset c", ["clean"]),
        ("keys optim.l", ["optim.lr"]),
        ("keys model.mini", ["model.minigpt."]),
        ("recipes --copy=imf", ["--copy=imf_faces", "--copy=imf_faces:smoke"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("trian --w", []),
    ],
)
def test_the_last_word_becomes(line, found):
    assert completion.candidates(line.split(" ")) == found


@pytest.fixture
def shell(tmp_path):
    """Runs a script in a shell where `tinygen` is this one. Skips where the shell is not installed."""

    def run(name, script):
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed")
        command = tmp_path / "tinygen"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tinygen "$@"\n')
        command.chmod(0o755)
        (tmp_path / "script").write_text(completion.SCRIPTS[name])
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        clean = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
        done = subprocess.run([name, *clean, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return run


BASH = r"""
source script
compopt() { options="$*"; }
ask() {
  options= COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
  _tinygen
  echo "${#COMPREPLY[@]} ${COMPREPLY[*]}|$options"
}
COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
ask 'tinygen tr'
ask 'tinygen train --config=dit_pix'
ask 'tinygen train --config=meanflow_digits:i'
ask 'tinygen train --config.optim.sch'
ask 'tinygen sample --ckpt='
COMP_WORDBREAKS=$' \t\n'
ask "$PWD/tinygen train --config=meanflow_digits:i"
complete -p tinygen
"""


def test_bash_replaces_only_what_follows_its_last_word_break(shell):
    assert shell("bash", BASH) == [
        "1 train|",
        "2 dit_pixel_faces dit_pixel_faces:smoke|",
        "1 improved|",
        "1 --config.optim.schedule=|-o nospace",
        "0 |",
        "1 --config=meanflow_digits:improved|",
        "complete -o default -F _tinygen tinygen",
    ]


ZSH = r"""
compdef() { print -r -- "compdef $*" }
compadd() { print -rl -- "$@" }
compset() { print -r -- "compset $*" }
_files() { print files }
source ./script
ask() { words=(tinygen $@); CURRENT=$#words; _tinygen }
ask train --config=meanflow_digits:i
ask train --config.optim.sch
ask sample --ckpt=
"""


def test_zsh_adds_what_is_to_be_continued_without_a_space(shell):
    words = shell("zsh", ZSH)
    assert words[0] == "compdef _tinygen tinygen"
    assert words[-2:] == ["compset -P *=", "files"]
    assert words.index("--config=meanflow_digits:improved") < words.index("--config.optim.schedule=")
    place = words.index("--config.optim.schedule=")
    assert words[place - 4 : place] == ["-Q", "-S", "", "--"]


def test_fish_offers_what_tinygen_answers_beside_files(shell):
    offered = shell("fish", "source script; complete --do-complete 'tinygen train --config=meanflow_digits:i'")
    assert "--config=meanflow_digits:improved" in offered
    assert "--config=meanflow_digits:smoke" not in offered
