"""Encodings of text files: detects byte order marks, names faults, composes characters."""

import codecs
import unicodedata

BOM = codecs.BOM_UTF8
MARK = BOM.decode()  # as a character


def is_utf16(start: bytes) -> bool:
    """Whether the first bytes of a file are a UTF-16 byte order mark."""
    return start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not is_utf32(start)


def is_utf32(start: bytes) -> bool:
    """Whether the first bytes of a file are a UTF-32 byte order mark; the little-endian one begins like UTF-16's."""
    return start[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


def fault(start: bytes) -> str:
    """Describes a file that is not valid UTF-8. start: its first four bytes, or all"""
    return "UTF-32, not UTF-8" if is_utf32(start) else "UTF-16, not UTF-8" if is_utf16(start) else "not UTF-8"


def composed(text: str) -> str:
    """The text in Unicode normal form C: "e" with a combining accent becomes the single character "é"."""
    return unicodedata.normalize("NFC", text)
