"""Classification of exceptions: a user's mistake (`UserError`), the environment, a lost process, or a bug.

Environment errors are a full disk, too little memory, too few file descriptors, a broken installation, an unreachable store, or input
that is nested too deeply. They are printed as one line, with the traceback in a file. Bugs print their traceback to the terminal.
Libraries raise types of their own for these, which only their messages tell apart.
"""

import errno
import gc
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator

from tinygen.system.terminal import say

# With the separator: in a clone called tinygen, .venv and its packages are below a folder of that name too.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LONGEST = 300  # characters of an error that a message repeats

FILES = "Too many open files"
MEMORY = "Cannot allocate memory"
SHORTAGES = {  # resource: (how it is reported by libraries that keep no errno, what helps)
    FILES: (rf"(?i){FILES}|EMFILE", "allow this process more open files: ulimit -n 4096"),
    MEMORY: (
        rf"(?i){MEMORY}|can't start new thread|failed to map segment|std::bad_alloc|unable to allocate [\d.]+ \w+ for an array",
        "free memory, or raise the limit of this process (ulimit -v, ulimit -u, a container's)",
    ),
    "No space left on device": (r"(?i)no space left on device|disk quota exceeded", "make room there"),
}
ERRNOS = {errno.EMFILE: FILES, errno.ENFILE: FILES, errno.ENOMEM: MEMORY, errno.ENOSPC: "No space left on device"}
DEVICE_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY")
DEVICE_CURE = "config.batch_size, config.optim.accumulate, config.remat and config.mesh.fsdp can reduce what is needed"
NO_BACKEND = re.compile(r"Unable to initialize backend|CUDA_ERROR_NO_DEVICE|No visible .* devices")
NETWORK = {"urllib", "urllib3", "http", "requests", "google", "aiohttp", "ssl"}  # packages whose exceptions are about a connection
TENSORFLOW = "tensorflow.python.framework.errors_impl"  # raised for buckets
XLA = {"JaxRuntimeError", "XlaRuntimeError"}  # by name, since JAX itself may fail to import
LOST = re.compile(r"Gloo|NCCL|[Cc]onnection (reset|closed|refused)|[Ss]ocket closed|[Hh]eartbeat|another task died|coordination service")
PEERS = {"JaxRuntimeError", "XlaRuntimeError", "ValueError", "RuntimeError"}  # which one is raised depends on when the connection broke


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that led to it: its causes, its contexts and the members of a group."""
    waiting, seen = [error], set()
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            context = None if each.__suppress_context__ else each.__context__
            waiting += [other for other in (each.__cause__, context) if other is not None]


def lost_peer(error: BaseException) -> BaseException | None:
    """The error in the chain by which a collective reports a lost process, or None."""
    return next((each for each in chain(error) if type(each).__name__ in PEERS and LOST.search(str(each))), None)


def environment_message(error: BaseException) -> str | None:
    """One line about an environment error, or None for any other."""
    for each in chain(error):  # a shortage is the root cause, whatever it was wrapped in
        if said := _shortage(each):
            return said
    if isinstance(error, OSError) and error.errno is not None:
        return f"{_subject(error)}: {error.strerror or _line(error)}"
    text, module = _line(error), type(error).__module__
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "tinygen":
        return f"a package cannot be imported ({text}). Is its installation complete, and is there enough memory (ulimit -v)?"
    if isinstance(error, RecursionError) and _nested(error):
        return f"the input is nested too deeply ({text})"
    if isinstance(error, RuntimeError) and NO_BACKEND.search(text):
        return f"JAX finds no such device ({text}). Check JAX_PLATFORMS and the driver"
    if module.partition(".")[0] in NETWORK or module == TENSORFLOW:
        return f"a network request failed ({type(error).__name__}: {text})"
    return None


def _shortage(error: BaseException) -> str | None:
    text = str(error)
    if type(error).__name__ in XLA and DEVICE_MEMORY.search(text):
        return f"out of device memory. {DEVICE_CURE}"
    name = ERRNOS.get(error.errno or 0) if isinstance(error, OSError) else MEMORY if isinstance(error, MemoryError) else None
    if name is None and isinstance(error, OSError | ImportError | RuntimeError):
        name = next((each for each, (pattern, _) in SHORTAGES.items() if re.search(pattern, text)), None)
    if name is None:
        return None
    where = _subject(error) if isinstance(error, OSError) else _line(error, SHORTAGES[name][0])
    return f"{name}{where and f' ({where})'}: {SHORTAGES[name][1]}"


def _subject(error: OSError) -> str:
    """The file that an error is about, if it names one."""
    return str(error.filename) if error.filename is not None else _line(error) if error.errno is None else "input/output"


def _line(error: BaseException, pattern: str = "") -> str:
    """The line of an error's text that matches, else the first, or the last if the text is a traceback (TensorFlow's import errors)."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    found = [line for line in lines if re.search(pattern, line)] if pattern else []
    return (found or ([lines[0]] if "Traceback" not in lines[0] else lines[-1:]))[-1][:LONGEST]


def _nested(error: RecursionError) -> bool:
    """Whether the recursion is in a parser or a library rather than in tinygen. A parser written in C leaves a short stack."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = sum(name.startswith(PACKAGE) for name in frames)
    return len(frames) < 200 or ours < len(frames) / 10


def show(error: BaseException, message: str) -> None:
    """Prints an environment error as one line, and a second line with the name of a new private file that holds its traceback.

    If no file can be written, the traceback is printed instead.
    """
    whole = "".join(traceback.format_exception(error))
    path = _write_traceback(whole)
    say(f"tinygen: {message}\n{f'The traceback is in {path}' if path else whole.rstrip()}", error=True)
    _discard(error)


def _write_traceback(text: str) -> str | None:
    """Writes a text to a new file that only this user can read. Returns its path, or None if it cannot be written."""
    for spare in (None, 0):  # if no more files can be opened, close standard input to make room
        try:
            if spare is not None:
                os.close(spare)
            descriptor, path = tempfile.mkstemp(prefix="tinygen-", suffix=".txt")
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
            return path
        except OSError as error:
            if error.errno != errno.EMFILE:
                return None
        except MemoryError:
            return None
    return None


def _discard(error: BaseException) -> None:
    """Frees what the frames of an error hold, without the tracebacks that half-initialized objects print when they are deleted."""
    before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        for each in chain(error):
            traceback.clear_frames(each.__traceback__)
        gc.collect()
    finally:
        sys.unraisablehook = before
