"""The machine being measured: how busy it is, and what it consists of."""

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY

BUSY = 0.1  # share of the CPU that other processes may use
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
# CPU features that determine the speed of matrix products.
FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "sve", "i8mm")


def busy_share(seconds: float = 2.0) -> float:
    """Share of the CPU in use over the next seconds; without /proc/stat, the load average per CPU."""
    if not Path("/proc/stat").exists():
        return os.getloadavg()[0] / (os.cpu_count() or 1)

    def ticks() -> tuple[int, int]:
        counts = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(counts), counts[3] + counts[4]  # total; idle and waiting for I/O

    all_before, idle_before = ticks()
    time.sleep(seconds)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def facts() -> dict[str, Any]:
    """What the measurements depend on: CPU, devices, versions, settings, revision."""
    import jax

    processor, features = cpu()
    return {
        "cpu": processor,
        "cpu_features": features,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "compilation_cache": jax.config.values["jax_compilation_cache_dir"] or "",
        "revision": revision(),
    }


def cpu(info: Path = Path("/proc/cpuinfo")) -> tuple[str, list[str]]:
    """The name of the CPU, and which of FEATURES it has."""
    lines = info.read_text().splitlines() if info.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    has = fields.get("flags", fields.get("Features", "")).split()
    return fields.get("model name", platform.processor() or platform.machine()), [name for name in FEATURES if name in has]


def revision() -> str:
    """The commit, with "-dirty" if files differ from it; "" without git."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def head(facts: dict[str, Any]) -> str:
    """The first line of a table."""
    processor = f"{facts['cores']} cores of {facts['cpu']} ({', '.join(facts['cpu_features'])})"
    return f"{facts['devices']} on {processor}, JAX {facts['versions']['jax']}"


def refusal(busy: float) -> str:
    """Why a benchmark does not start on a busy machine."""
    return f"other processes use {busy:.0%} of the CPU, so timings would be unreliable (--force to measure anyway)"


def caution(busy: float) -> list[str]:
    """The last line of a table that was measured on a busy machine."""
    return [f"UNRELIABLE: other processes used {busy:.0%} of the CPU before the run."] if busy > BUSY else []
