"""The folder where compiled programs stay for the next process."""

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

COMPILED = 2 * 2**30  # bytes of compiled programs that are kept, at most; a program has 0.1 to 10 MB
ROOM = 2**26  # bytes that must be free to keep more


def keep_compiled() -> None:
    """Has JAX keep compiled programs in the user's cache folder, for the next process. To be called before the first is compiled.

    JAX's own settings win: JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=false turns this off.
    Where the folder cannot be used, one line on stderr says so, and every process compiles for itself.
    """
    import jax

    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is not None or not settings.jax_enable_compilation_cache:
        return
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinygen" / "compilation"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds code that will be run
        prune(folder, COMPILED)  # JAX's own limit needs another package and locks the folder at every look into it
        tempfile.TemporaryFile(dir=folder).close()
        if shutil.disk_usage(folder).free < ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        say(f"tinygen: compiled programs are not kept for the next start: {error}", error=True)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a run compiles few programs, and no small ones
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache")  # a folder that has filled up since: once a program
    warnings.showwarning = functools.partial(forget_torn, folder, warnings.showwarning)


def forget_torn(folder: Path, show: Callable[..., None], message: Warning | str, *where: Any, **more: Any) -> None:
    """Shows a warning, unless it is JAX's of a program that cannot be read, since a process or a disk ended while it was written.

    Such a file JAX would never write anew: it is deleted, and written again after this compilation.
    """
    found = re.match(r"Error reading persistent compilation cache entry for '([^'/]+)'", str(message))
    if found is None:
        show(message, *where, **more)
        return
    for path in folder.glob(f"{glob.escape(found[1])}-*"):
        path.unlink(missing_ok=True)
