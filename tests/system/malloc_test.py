"""The C heap: what is kept, and what goes back to the kernel."""

import ctypes
import subprocess
import sys

import pytest

# Freed blocks between blocks that stay, as decoding and computing leave them; what is said is how many MiB are resident.
PROGRAM = """
from pathlib import Path
import numpy as np
from tinygen.system import malloc

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

malloc.retain_freed_memory()
before, blocks = resident(), [np.ones(2**18, np.uint8) for _ in range(800)]
del blocks[::2]
del blocks[:390]
kept = resident() - before
malloc.release_freed_memory()
print(kept, resident() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_freed_memory_is_kept_until_it_is_returned():
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    kept, returned = map(int, said.split())
    assert kept > 150
    assert returned < 50
