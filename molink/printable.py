"""Text from afar, made safe for a terminal.

A terminal obeys what it shows: an escape sequence in a node's name can set the title, clear the
screen or write the clipboard, and a bidirectional override can show a command as another one. So
what a node, a coordinator, a server or a model has written is cleaned twice: where its message is
read (`molink.control.messages.base`) and where it is printed.

Each character that a terminal would obey becomes one U+FFFD. Cutting whole sequences out was
rejected: answers come in pieces, and a sequence may be divided between two of them. Without its
escape character the rest of a sequence is only text.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import TextIO

REPLACEMENT = "\ufffd"

OBEYED = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
    *range(0xFFF9, 0xFFFC),
)
"""Control characters (C0, DEL, C1), separators of lines and paragraphs, overrides and isolates of
the direction of writing, halves of surrogate pairs (which cannot even be encoded), annotations."""

_TEXT: dict[int, str] = dict.fromkeys(OBEYED, REPLACEMENT) | {
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): "",
}
_LINE = _TEXT | {ord("\n"): " ", ord("\t"): " ", 0x2028: " ", 0x2029: " "}


def printable(text: str) -> str:
    """The text with nothing left that a terminal obeys but newlines and tabs; never longer."""
    return text.translate(_TEXT)


def printable_line(text: str) -> str:
    """The same in one line: newlines and tabs become spaces."""
    return text.translate(_LINE)


def plain_line(text: str) -> str:
    """The same, with U+FFFD also for what Python does not count as printable, such as spaces that
    do not break: what messages between a stage and its supervisor take."""
    return "".join(letter if letter.isprintable() else REPLACEMENT for letter in text)


def is_printable(text: str) -> bool:
    """Whether a terminal would show all of it, in one line, and obey nothing."""
    return text.translate(_LINE) == text


def near_names(written: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that are most like one that is not known."""
    plain = {name.replace("-", ""): name for name in known}
    asked = "".join(letter for letter in written.lower() if letter.isalnum() or letter == ".")
    return [plain[name] for name in get_close_matches(asked, plain, 3, 0.5)]


class PrintableFormatter(logging.Formatter):
    """Formatter of log records, which may quote what came from afar."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as usual, made printable; tracebacks keep their lines."""
        return printable(super().format(record))


class PrintableStream:
    """Text stream that makes printable what is written, for a process of libraries that print."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the printable text; a terminal that is gone or a full disk is no error."""
        with suppress(OSError, ValueError):
            self._stream.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, if anybody is there to read it."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
