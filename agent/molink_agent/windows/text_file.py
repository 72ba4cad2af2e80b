"""A small text file of Windows, read and written back in the encoding that it had.

`.wslconfig` is written by people with Notepad and by scripts with `>`: UTF-8 with or without a
mark, an old code page, or UTF-16. Whatever it is, only the lines that we mean to change may change.
"""

import codecs
import os
from dataclasses import dataclass
from pathlib import Path

from molink.errors import UserError

__all__ = ["TextFile"]

BYTES_MAX = 2**20
"""A .wslconfig has a few hundred bytes; what is bigger is something else."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """The content of a file, and how it is stored."""

    path: Path
    text: str
    encoding: str
    mark: bytes

    @classmethod
    def read(cls, path: Path) -> "TextFile":
        """Empty when there is none. Raises UserError when it cannot be read."""
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from None
        if len(content) > BYTES_MAX:
            raise UserError(f"{path} has {len(content)} bytes: that is no .wslconfig.")
        encoding, mark = _encoding(content)
        try:
            text = content[len(mark) :].decode(encoding, errors=_errors(encoding))
        except UnicodeDecodeError:
            raise UserError(f"{path} is damaged: it is not the UTF-16 that it says.") from None
        return cls(path, text, encoding, mark)

    def write(self, text: str) -> None:
        """Replace the content at once; UserError when that fails, and the file is as before."""
        content = self.mark + text.encode(self.encoding, errors=_errors(self.encoding))
        new = self.path.with_name(f"{self.path.name}.molink-{os.getpid()}")
        try:
            new.write_bytes(content)
            new.replace(self.path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise UserError(f"{self.path} cannot be written: {error.strerror}.") from None


def _encoding(content: bytes) -> tuple[str, bytes]:
    if content.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le", codecs.BOM_UTF16_LE
    if content.startswith(codecs.BOM_UTF8):
        return "utf-8", codecs.BOM_UTF8
    return "utf-8", b""


def _errors(encoding: str) -> str:
    """Bytes of an old code page go through as they are; UTF-16 has no such way."""
    return "surrogateescape" if encoding == "utf-8" else "strict"
