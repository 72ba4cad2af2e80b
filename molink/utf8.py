"""Text of files and bodies that people's editors, shells and programs write.

On Windows these put a byte-order mark in front of UTF-8, or write UTF-16 or an older encoding. The
mark is passed over; of the others the name is told, as a guess would only fail later.
"""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE


def utf8_text(raw: bytes | bytearray) -> str:
    """The text of UTF-8, without a byte-order mark. Raises ValueError, whose clause names what else
    it is."""
    if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or raw[:2].count(0) == 1:
        raise ValueError("it is UTF-16, not UTF-8")
    try:
        return raw.decode("utf-8").lstrip("\ufeff")
    except UnicodeDecodeError:
        what = "binary data" if 0 in raw else "Latin-1 or alike"
        what = "compressed with gzip" if raw.startswith(b"\x1f\x8b") else what
        raise ValueError(f"it is {what}, not UTF-8") from None
