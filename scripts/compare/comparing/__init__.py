"""The parts of the scripts that compare recipes, which import them from their own folder. They run the checkout that they are part of."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

for folder in (REPOSITORY / "scripts" / "bench", REPOSITORY):  # the former for how busy the machine is
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
