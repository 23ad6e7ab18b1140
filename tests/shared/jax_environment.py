"""How JAX computes in tests: eight CPU devices, one compilation cache. To be imported before JAX.

Compilation is most of the suite's time, so: XLA optimises little (the tests' arrays are tiny), and a program compiled once
is read from a cache by every later test, by the other pytest workers and by the subprocesses that tests start.
"""

import importlib.metadata
import os
import tempfile

CACHE = "JAX_COMPILATION_CACHE_DIR"
FLAGS = ["--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
# XLA compiles three times as fast so; an unknown flag would end the process, and newer versions know the other one.
OLD = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11)
FLAGS += ["--xla_cpu_use_fusion_emitters=false" if OLD else "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"]
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
OWN_CACHE = None if CACHE in os.environ else tempfile.mkdtemp(prefix="tinygen-tests-")  # pytest's workers inherit the first one's
os.environ.setdefault(CACHE, str(OWN_CACHE))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # no stack trace with every operation of a program
