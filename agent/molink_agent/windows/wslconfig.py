"""Mirrored networking in `.wslconfig`, and back, without touching what else its owner wrote there.

The file belongs to the owner, and other programs (Docker Desktop) edit it too. So we do not parse
and print it anew: lines are kept as they are, what we replace stays as a comment, what we add says
that it is ours, and removing puts back the very text that was there before.

The rules are WSL's own: names in any case, comments with #, a backslash at the end of a setting
continues it, of two settings with one name the first counts.

It is written with Notepad and by scripts with `>`: UTF-8 with or without a mark, an old code page,
or UTF-16. It is written back in the encoding that it had.
"""

import codecs
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from molink.errors import UserError

SECTION = "wsl2"
KEY = "networkingmode"
SETTING = "networkingMode=mirrored"
HEADER = f"[{SECTION}]"

OURS = "# MoLink added the next line"
KEPT = "# MoLink keeps for later: "

BYTES_MAX = 2**20
"""A .wslconfig has a few hundred bytes; what is bigger is something else."""

_HEADER = re.compile(r"[ \t]*\[([A-Za-z][A-Za-z0-9]*)\][ \t]*(?:#.*)?")
_SETTING = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9]*)[ \t]*=[ \t]*(.*)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_VALUE = re.compile(r'"?([^"#]*?)"?[ \t]*(?:#.*)?')

Lines = list[str]
"""Physical lines without their ends."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """Text of a small file of Windows, and how it is stored."""

    path: Path
    text: str
    encoding: str
    mark: bytes

    @classmethod
    def read(cls, path: Path) -> "TextFile":
        """The file at `path`, empty when there is none. Raises UserError when it cannot be read."""
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


def is_mirrored(text: str) -> bool:
    """Whether WSL takes mirrored networking from this file."""
    first = next(_networking_settings(_lines(text)), None)
    value = _VALUE.fullmatch(first[2]) if first else None
    return value is not None and value[1].strip().lower() == "mirrored"


def with_mirrored(text: str) -> str:
    """The same file with mirrored networking; the very same where it has that already."""
    if is_mirrored(text):
        return text
    lines = _lines(text)
    spans = [(first, last) for first, last, _ in _networking_settings(lines)]
    first_line = spans[0][0] if spans else _line_after_header(lines)
    for first, last in reversed(spans):
        lines[first:last] = [KEPT + line for line in lines[first:last]]
    if first_line is None:
        lines += [OURS, HEADER, OURS, SETTING]
    else:
        lines[first_line:first_line] = [OURS, SETTING]
    return _text(lines, text)


def without_ours(text: str) -> str:
    """The file as it was before `with_mirrored`, as far as it was not changed since."""
    lines = _lines(text)
    kept: Lines = []
    position = 0
    while position < len(lines):
        line, following = lines[position], lines[position + 1 : position + 2]
        if line == OURS:
            ours = following == [SETTING] or (
                following == [HEADER] and _section_is_empty(lines, position + 2)
            )
            position += 2 if ours else 1
            continue
        kept.append(line.removeprefix(KEPT))
        position += 1
    return text if kept == lines else _text(kept, text)


def _networking_settings(lines: Lines) -> Iterator[tuple[int, int, str]]:
    """First line, line after the last, and value of every networkingMode in [wsl2], in order."""
    for first, last, section in _logical_lines(lines):
        found = _SETTING.fullmatch(lines[first])
        if found and section == SECTION and found[1].lower() == KEY:
            yield first, last, found[2]


def _logical_lines(lines: Lines) -> Iterator[tuple[int, int, str]]:
    """Every line with its continuations, as [first, last), and the section it lies in."""
    section = ""
    first = 0
    while first < len(lines):
        last = first + 1
        if header := _HEADER.fullmatch(lines[first]):
            section = header[1].lower()
        elif _SETTING.fullmatch(lines[first]):
            while last < len(lines) and _goes_on(lines[last - 1]):
                last += 1
        yield first, last, section
        first = last


def _goes_on(line: str) -> bool:
    """Whether it ends in a backslash that is neither escaped itself nor in a comment."""
    if "#" in _QUOTED.sub("", line):
        return False
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _line_after_header(lines: Lines) -> int | None:
    """Line behind the first header [wsl2]; None when there is none."""
    for first, last, section in _logical_lines(lines):
        if section == SECTION and _HEADER.fullmatch(lines[first]):
            return last
    return None


def _section_is_empty(lines: Lines, start: int) -> bool:
    """Whether the section that begins at `start` holds no setting but ours."""
    for line in lines[start:]:
        if _HEADER.fullmatch(line):
            return True
        if _SETTING.fullmatch(line) and line != SETTING:
            return False
    return True


def _lines(text: str) -> Lines:
    """Lines of a text, by the line ends that WSL knows: Python's splitlines takes others too."""
    lines = re.split(r"\r?\n", text)
    return lines[:-1] if lines[-1] == "" else lines


def _text(lines: Lines, before: str) -> str:
    """Text of the lines, with the line ends that the file had; a new file gets those of Windows."""
    end = "\n" if "\n" in before and "\r\n" not in before else "\r\n"
    return "".join(line + end for line in lines)


def _encoding(content: bytes) -> tuple[str, bytes]:
    if content.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le", codecs.BOM_UTF16_LE
    if content.startswith(codecs.BOM_UTF8):
        return "utf-8", codecs.BOM_UTF8
    return "utf-8", b""


def _errors(encoding: str) -> str:
    """Bytes of an old code page go through as they are; UTF-16 has no such way."""
    return "surrogateescape" if encoding == "utf-8" else "strict"
