"""Encodings of text files: detects byte order marks, names faults, composes characters."""

import codecs
import unicodedata

BOM = codecs.BOM_UTF8
MARK = BOM.decode()  # as a character


def wide(start: bytes) -> str:
    """The encoding, UTF-16 or UTF-32, whose byte order mark a file starts with; "" for neither."""
    if start[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):  # the former begins like UTF-16's
        return "UTF-32"
    return "UTF-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else ""


def fault(start: bytes) -> str:
    """Describes a file that is not valid UTF-8. start: its first four bytes, or all"""
    return f"{wide(start)}, not UTF-8" if wide(start) else "not UTF-8"


def composed(text: str) -> str:
    """The text in Unicode normal form C: "e" with a combining accent becomes the single character "é"."""
    return unicodedata.normalize("NFC", text)
