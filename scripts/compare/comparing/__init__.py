"""Modules of the scripts that compare recipes. They run the checkout that contains them, installed or not."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

for folder in (REPOSITORY / "scripts" / "bench", REPOSITORY):  # the former for benchmarks.machine
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
