"""`tinygen evaluate`: the objective's metrics on held-out data, from a checkpoint."""

import json
import time

import jax

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.weights import EVERYWHERE, load
from tinygen.distributed import processes
from tinygen.errors import UserError
from tinygen.system.terminal import say
from tinygen.training.held_out import make_held_out
from tinygen.workdir.files import folder
from tinygen.workdir.manifest import data_difference


def main(ckpt: str, *, step: int | None, ema: bool) -> int:
    """Prints the held-out metrics of a checkpoint and appends them to the run's eval.jsonl."""
    saved = store.find(ckpt, step)
    processes.agree("the checkpoint", str(saved.step))
    config = config_lib.change(saved.config, {"train": {"eval_num": 0}, **EVERYWHERE})
    with processes.lead_first("data"):
        source = build.data_source(config, saved.codec, prepares=False)
    if why := data_difference(folder(saved.workdir), saved.manifest.get("data_fingerprint", source.fingerprint), source):
        raise UserError(
            f"the data of {saved.workdir} have changed since it was trained ({why}):\n"
            "the held-out split may contain training examples. Restore the original data."
        )
    processes.agree("the data", source.fingerprint)
    parts = build.parts(config, saved.codec)
    with jax.set_mesh(parts.layout.mesh):
        values = make_held_out(config, source, parts)(*load(saved, parts, ema=ema))
    if processes.leads():
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        line = {"step": saved.step, "ema": ema, "data_fingerprint": source.fingerprint, "time": now, **values}
        folder(saved.workdir).append("eval.jsonl", json.dumps(line) + "\n")
        say(f"step {saved.step}, {'averaged' if ema else 'raw'} weights, {len(source.splits['validation'])} held-out examples")
        say("\n".join(f"  {name:<{max(map(len, values))}}  {value:.5g}" for name, value in values.items()))
    return 0
