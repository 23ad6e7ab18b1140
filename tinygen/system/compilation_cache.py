"""JAX's persistent compilation cache, in the user's cache folder.

The size limit is ours: with that of JAX 0.10, one entry without its time of use, left by a killed process or by an earlier tinygen,
makes every later write fail, and on a file system without locks nothing is cached.
"""

import errno
import functools
import glob
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinygen.system.cache import prune
from tinygen.system.terminal import say

COMPILED = 2 * 2**30  # size limit of the cache in bytes; a program takes 0.1 to 10 MB
ROOM = 2**26  # bytes of free disk space below which the cache is not used


def enable() -> None:
    """Enables the cache. Call this before the first compilation.

    JAX's own settings take precedence: JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=false disables it.
    If the folder cannot be used, a line on stderr says so, and programs are compiled anew.
    """
    import jax

    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is not None or not settings.jax_enable_compilation_cache:
        return
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinygen" / "compilation"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds code that will be executed
        prune(folder, COMPILED)
        tempfile.TemporaryFile(dir=folder).close()
        if shutil.disk_usage(folder).free < ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        say(f"tinygen: the compilation cache is disabled: {error}", error=True)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a run compiles few programs, none of them small
    warnings.filterwarnings(
        "ignore", "Error writing persistent compilation cache"
    )  # if the disk fills up later, JAX would warn once per program
    warnings.showwarning = functools.partial(delete_corrupt_entry, folder, warnings.showwarning)


def delete_corrupt_entry(folder: Path, show: Callable[..., None], message: Warning | str, *where: Any, **more: Any) -> None:
    """A `warnings.showwarning` that deletes the cache entry if the warning is JAX's about an unreadable one, and shows any other.

    An entry is corrupt if the process was killed or the disk filled up while it was written. JAX would never replace it; once deleted,
    it is written again after this compilation.
    """
    found = re.match(r"Error reading persistent compilation cache entry for '([^'/]+)'", str(message))
    if found is None:
        show(message, *where, **more)
        return
    for path in folder.glob(f"{glob.escape(found[1])}-*"):
        path.unlink(missing_ok=True)
