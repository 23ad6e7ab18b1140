"""The parts of bench.py, which imports them from its own folder. They measure the checkout that they are part of, installed or not."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))
