"""Words of a stream, put whole on lines of a terminal.

A terminal breaks a line wherever its edge is, also in the middle of a word. An answer comes in
pieces that end anywhere, so a word is held back until what follows shows its end. Lines of code
(between fences) are left to the terminal: a break that is put into them would be copied along.
"""

from dataclasses import dataclass

from rich.cells import cell_len

FENCE = "```"
WIDE = 2
"""Cells of a letter of Chinese, Japanese or Korean: a line may break beside it."""


@dataclass(slots=True)
class WordWrap:
    """Wraps pieces of a text at words, on lines of `width` cells."""

    width: int
    _column: int = 0
    _word: str = ""
    _line: str = ""
    """Text of the present line of the source, as far as it says whether it is a fence."""
    _is_code: bool = False

    def wrapped(self, piece: str) -> str:
        """What of the text so far can be written now."""
        return "".join(map(self._letter, piece))

    def rest(self) -> str:
        """What is held back, at the end of the text."""
        return self._flushed()

    def _letter(self, letter: str) -> str:
        if letter == "\n":
            return self._ended_line()
        self._line += letter if len(self._line) < len(FENCE) else ""
        if self._is_code:
            return letter
        if letter == " ":
            return self._flushed() + self._space()
        if cell_len(letter) == WIDE:
            before = self._flushed()
            self._word = letter
            return before + self._flushed()
        self._word += letter
        return ""

    def _ended_line(self) -> str:
        text = self._flushed() + "\n"
        if self._line == FENCE:
            self._is_code = not self._is_code
        self._line, self._column = "", 0
        return text

    def _space(self) -> str:
        if self._column >= self.width:
            return ""  # The line is full: its break stands for the space.
        self._column += 1
        return " "

    def _flushed(self) -> str:
        word, self._word = self._word, ""
        cells = cell_len(word)
        if before := "\n" * bool(self._column and self._column + cells > self.width):
            self._column = 0
        self._column += cells
        if self._column > self.width:  # The terminal breaks a word that is longer than a line.
            self._column %= self.width
        return before + word
