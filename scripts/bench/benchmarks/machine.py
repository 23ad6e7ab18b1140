"""The machine: whether it is idle, and its description."""

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY

BUSY = 0.1  # share of the processors' time that others may use
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
# Of a processor: what decides how fast its matrix products are.
FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "sve", "i8mm")


def busy_share(seconds: float = 2.0) -> float:
    """The share of all processors' time in use, over the next seconds; by the load of the last minute where Linux's counters are not."""
    if not Path("/proc/stat").exists():
        return os.getloadavg()[0] / (os.cpu_count() or 1)

    def ticks() -> tuple[int, int]:
        counts = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(counts), counts[3] + counts[4]  # all; idle and waiting for a disk

    all_before, idle_before = ticks()
    time.sleep(seconds)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def facts() -> dict[str, Any]:
    """What a number depends on: processor, devices, versions, settings, revision."""
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
    """The processor's name, and which of FEATURES it has."""
    lines = info.read_text().splitlines() if info.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    has = fields.get("flags", fields.get("Features", "")).split()
    return fields.get("model name", platform.processor() or platform.machine()), [name for name in FEATURES if name in has]


def revision() -> str:
    """The commit that is measured, with "-dirty" where files differ from it; "" where git does not know."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def head(found: dict[str, Any]) -> str:
    """The facts that a table opens with."""
    processor = f"{found['cores']} cores of {found['cpu']} ({', '.join(found['cpu_features'])})"
    return f"{found['devices']} on {processor}, JAX {found['versions']['jax']}"


def caution(busy: float) -> list[str]:
    """What a table of a busy machine ends with."""
    return [f"FALSE NUMBERS: others used {busy:.0%} of the processors before the run."] if busy > BUSY else []
