"""Text as others have written it: it must be UTF-8, whose byte order mark is no part of it, and one text can be spelled in several ways."""

import codecs
import unicodedata

BOM = codecs.BOM_UTF8
MARK = BOM.decode()  # as a character


def is_utf16(start: bytes) -> bool:
    """Whether a file that begins with these bytes says that it is UTF-16."""
    return start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not is_utf32(start)


def is_utf32(start: bytes) -> bool:
    """Whether a file that begins with these bytes says that it is UTF-32, whose little-endian mark begins as that of UTF-16 does."""
    return start[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


def fault(start: bytes) -> str:
    """What a file is that cannot be decoded as UTF-8, in a few words. start: its first bytes, four or all"""
    return "UTF-32, not UTF-8" if is_utf32(start) else "UTF-16, not UTF-8" if is_utf16(start) else "not UTF-8"


def composed(text: str) -> str:
    """The text in Unicode's normal form C: "é" is one character, whether it was one or an "e" and an accent."""
    return unicodedata.normalize("NFC", text)
