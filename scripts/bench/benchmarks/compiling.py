"""Time to trace, lower and compile a training step, with an empty and with a filled compilation cache."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY, ours
from benchmarks.machine import caution, head
from tinygen import config as config_lib
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.errors import UserError

STAGES = ("trace", "lower", "compile")


def measure(recipe: str, sizes: Mapping[str, Sequence[int]], shape: Sequence[int], settings: Sequence[str]) -> dict[str, Any]:
    """{"runs": [{"name", "cold": {stage: seconds}, "warm": {stage: seconds}}, ...]} of a recipe, or of all `sizes`."""
    named: dict[str, tuple[Config, Codec]] = {}
    if recipe:
        from tinygen import build

        config = ours.override(config_lib.load(recipe), settings)
        named[os.path.basename(recipe)] = config, build.data_source(config).codec
    for chosen in () if recipe else ours.grid(sizes):
        name = ", ".join(f"{key} {value}" for key, value in chosen.items())
        named[f"{name} of {tuple(shape)}"] = ours.configuration(chosen, settings), ours.noise_codec(shape)
    return {"settings": list(settings), "runs": [{"name": name, **cold_and_warm(*each)} for name, each in named.items()]}


def cold_and_warm(config: Config, codec: Codec) -> dict[str, Any]:
    """The seconds of two new processes in sequence, which share an initially empty compilation cache."""
    with tempfile.TemporaryDirectory() as cache:
        cold = compile_in_subprocess(config, codec, cache)
        entries = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
        return {"cold": cold, "warm": compile_in_subprocess(config, codec, cache), "cache_bytes": entries}


def compile_in_subprocess(config: Config, codec: Codec, cache: str) -> dict[str, float]:
    """Seconds per stage in a new process. Raises UserError with its last line of output if it fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "scripts" / "bench"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    request = json.dumps({"config": config.to_dict(), "codec": codec.to_json()})
    done = subprocess.run([sys.executable, "-m", "benchmarks.compiling"], input=request, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the process that compiles the step failed: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """In the new process: reads configuration and codec, compiles the step, prints the seconds of each stage."""
    request = json.load(sys.stdin)
    ours.prepare_process()
    import jax

    step = ours.step_of(config_lib.base(**request["config"]), Codec.from_json(request["codec"]))
    with jax.set_mesh(step.parts.layout.mesh):
        print(json.dumps(ours.compiled(step.jitted, step.abstract, step.batch)[1]))


def table(result: dict[str, Any]) -> str:
    wide = max(len(run["name"]) for run in result["runs"])
    lines = [head(result["machine"]), f"settings: {' '.join(result['settings']) or 'defaults'}"]
    lines.append(f"{'seconds':<{wide}}  cache {''.join(f'{stage:>9}' for stage in STAGES)}    total")
    for run in result["runs"]:
        for kind in ("cold", "warm"):
            stages = [run[kind][stage] for stage in STAGES]
            lines.append(f"{run['name']:<{wide}}  {kind:<5} {''.join(f'{seconds:9.2f}' for seconds in [*stages, sum(stages)])}")
    return "\n".join([*lines, *caution(result["busy_before"])])


if __name__ == "__main__":
    main()
