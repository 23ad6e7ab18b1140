"""Overrides of the recipe's sampler settings, and which of them a record lists."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import EVERYWHERE
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.samplers.table import SAMPLERS

TOKENS = {  # settings of discrete diffusion, and what they need
    "schedule": "config.objective.process=mask",
    "choice_temperature": "--sampler=confidence",
    "remask": "--sampler=ancestral",
    "proportion": "config.objective.process=uniform",
    "proportion_decay": "config.objective.process=uniform",
    "min_steps": "config.objective.process=uniform",
}


def configured(config: Config, settings: Mapping[str, Any], codec: Codec) -> Config:
    """A run's configuration for sampling on this machine, with overridden sampler settings. Raises UserError for settings that the
    objective does not have or that would have no effect.
    """
    for name in settings:
        if name not in config.objective:
            learnt = name.startswith("guidance") and "omega" in config.objective
            why = ": its guidance is fixed by config.objective.omega and kappa in training" if learnt else ""
            raise UserError(f"--{name}: objective {config.objective.name!r} has no such setting{why}")
    if settings.get("guidance", 1) != 1 and not codec.guided:
        raise UserError(f"--guidance={settings['guidance']}: this model was trained without labels or captions; omit it")
    changed = config_lib.change(config, {"objective": dict(settings), **EVERYWHERE})
    keys, adaptive = changed.objective, _adaptive(changed)
    wanted = {
        "time_grid": (not adaptive or keys.get("time_grid") == "uniform", "a sampler other than dopri5"),
        "shift": (
            keys.get("time_grid") == "shifted" and not adaptive,
            "--time_grid=shifted" + " and a sampler other than dopri5" * adaptive,
        ),
        "tolerance": (adaptive, "--sampler=dopri5"),
    }
    if "process" in keys:
        wanted |= {name: (name in _of_tokens(changed), needed) for name, needed in TOKENS.items()}
    for name, (acts, needed) in wanted.items():
        if name in settings and not acts:
            raise UserError(f"--{name}={settings[name]} has no effect here: it needs {needed}")
    return changed


def stepping(config: Config) -> dict[str, Any]:
    """The settings of a sampler's steps that take effect; none for a uniform grid."""
    if "process" in config.objective:
        return {name: config.objective[name] for name in _of_tokens(config)}
    if _adaptive(config):
        return {"tolerance": config.objective.tolerance}
    names = {"logit_normal": ("time_grid",), "shifted": ("time_grid", "shift")}.get(config.objective.get("time_grid"), ())
    return {name: config.objective[name] for name in names}


def spent(config: Config, evaluations: np.ndarray) -> dict[str, Any]:
    """Network evaluations per sample; their mean and maximum if they differ, and for an adaptive sampler."""
    if not _adaptive(config) and evaluations.min() == evaluations.max():
        return {"nfe": int(evaluations[0])}
    return {"nfe": round(float(evaluations.mean()), 2), "nfe_most": int(evaluations.max())}


def guidance(config: Config, codec: Codec) -> dict[str, Any]:
    """The guidance settings that take effect: others must not make two protocols differ."""
    scale, interval = config.objective.get("guidance"), config.objective.get("guidance_interval", ())
    acts = codec.guided and scale != 1
    return {"guidance": scale if acts or scale is None else 1.0, "guidance_interval": list(interval) if acts else None}


def _of_tokens(config: Config) -> tuple[str, ...]:
    """The settings of discrete diffusion that take effect with the process and the sampler."""
    keys, every = config.objective, ("temperature", "temperature_decay", "top_k", "top_p")
    if keys.process == "uniform":
        return (*every, "proportion", "proportion_decay", "min_steps")
    return (*every, "schedule", *{"halton": (), "ancestral": ("remask",)}.get(keys.sampler, ("choice_temperature",)))


def _adaptive(config: Config) -> bool:
    row = SAMPLERS.get(config.objective.get("sampler"))  # the objective's constructor refuses unknown names
    return row is not None and row.adaptive


def find(ckpt: str, step: int | None, autoencoder: str | None) -> store.Saved:
    """The checkpoint to sample from, the same on all processes.

    autoencoder: its present path for a run on latents, if it has moved since training
    """
    saved = store.find(ckpt, step)
    processes.agree("the checkpoint", str(saved.step))
    return dataclasses.replace(saved, codec=saved.codec.moved(autoencoder)) if autoencoder else saved
