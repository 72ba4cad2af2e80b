"""What a terminal would obey, and what it shows."""

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.printable import (
    PrintableFormatter,
    PrintableStream,
    is_printable,
    printable,
    printable_line,
)
from tests.nasty_text import OBEYED, nasty_texts

ATTACKS = {
    "a title": "\x1b]0;owned\x1b\\",
    "a cleared screen": "\x1b[2J",
    "a written clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "the same in C1": "\x9b2J\x9d0;owned\x9c",
    "another reading order": "rm -rf /\u202e# sdaeh",
    "an overwritten line": "done\r\x1b[Kfailed",
    "half of a pair": "\ud83d",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_attack_is_left(attack):
    assert not set(printable(attack)) & OBEYED
    assert not set(printable_line(attack)) & OBEYED
    assert not is_printable(attack)


@given(nasty_texts)
def test_nothing_is_left_that_a_terminal_obeys(text):
    assert not set(printable(text)) & OBEYED - {"\n", "\t"}
    line = printable_line(text)
    assert not set(line) & OBEYED
    assert is_printable(line)
    assert len(line) <= len(text)
    line.encode()


@pytest.mark.parametrize("text", ["", "Annas PC – Küche", "日本語", "🦙👩‍🚀", "עברית", "a\u200fb"])
def test_what_people_write_stays(text):
    assert printable(text) == printable_line(text) == text
    assert is_printable(text)


def test_an_answer_keeps_its_lines():
    assert printable("def f():\r\n\treturn 1\n") == "def f():\n\treturn 1\n"
    assert printable_line("one\ntwo\tthree") == "one two three"


@given(st.lists(nasty_texts))
def test_pieces_are_as_safe_as_the_whole(pieces):
    assert "".join(map(printable, pieces)) == printable("".join(pieces))


def test_a_log_record_keeps_its_lines_and_nothing_else():
    record = logging.LogRecord("a", logging.INFO, "", 1, "%s\n is bad", ("\x1b[2Jname",), None)
    assert PrintableFormatter().format(record) == "\ufffd[2Jname\n is bad"


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")

    def flush(self):
        raise OSError(28, "No space left on device")


def test_a_stream_cleans_and_outlives_a_full_disk():
    shown = io.StringIO()
    print("\x1b[2J", "warning", file=PrintableStream(shown))
    assert shown.getvalue() == "\ufffd[2J warning\n"
    print("warning", file=PrintableStream(FullDisk()), flush=True)
