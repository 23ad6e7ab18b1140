"""The parts of torture.py, which imports them from its own folder. They use the checkout that they are part of, installed or not."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))


def show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
