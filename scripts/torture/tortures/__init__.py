"""Modules of torture.py. They test the checkout that contains them, installed or not."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))


def show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
