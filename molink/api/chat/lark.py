"""Pieces of grammars in llguidance's Lark, with the marks of a model's format in them.

A mark that is a token which grammars take for no text (`ChatFormat.special_marks`) is named by its
token id. Any other mark is text, which the model may write in whatever tokens it likes. The same
mark spelled in letters looks alike to whoever reads the answer, so it is kept out of free text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ANYTHING = "/(?s:.*)/"

COMPACT = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""Arguments as models write them: with blanks wherever JSON takes them, small models write blanks
for ever. What matches one of several schemas may match another, too."""


@dataclass(frozen=True, slots=True)
class LarkWriter:
    """Writer of texts as grammars quote them."""

    token_ids: Mapping[str, int] = field(default_factory=dict)
    """Token ids of the marks that are tokens and no text."""

    def literal(self, text: str) -> str:
        """A text with marks in it; nothing for none."""
        return " ".join(self._quoted(piece) for piece in self._pieces(text))

    def up_to(self, rule: str, end: str, text: str = ANYTHING, among: Sequence[str] = ()) -> str:
        """Rules, the first called `rule`, for a text as the terminal `text` says, up to the first
        `end`; `among`: marks that may stand in it."""
        first, *others = self._pieces(end.lstrip())
        marks = [self.literal(mark) for mark in among if mark in self.token_ids]
        some = f"({rule.upper()} ({' | '.join(marks)}))* " if marks else ""
        if first in self.token_ids:
            text, whole = self.without(first, text), self.literal(end.lstrip())
            return f"{rule}: {some}{rule.upper()} {whole}\n{rule.upper()}: {text}"
        stop = end[: len(end) - len(end.lstrip())] + first
        rest = " ".join(self._quoted(piece) for piece in others)
        return (
            f"{rule}: {some}{rule}_end {rest}\n"
            f"{rule}_end[lazy]: {rule.upper()} {json.dumps(stop)}\n"
            f"{rule.upper()}: {text}"
        )

    def without(self, mark: str, text: str = ANYTHING) -> str:
        """The terminal `text`, in which a mark that is a token is not spelled in letters."""
        spelled = escaped(re.escape(mark))
        return f"{text} & ~/(?s:.*){spelled}(?s:.*)/" if mark in self.token_ids else text

    def _pieces(self, text: str) -> list[str]:
        """Marks that are tokens, and the texts between them."""
        if not self.token_ids:
            return [text] if text else []
        marks = sorted(self.token_ids, key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, marks))})", text)
        return [piece for piece in pieces if piece]

    def _quoted(self, piece: str) -> str:
        token_id = self.token_ids.get(piece)
        return f"<[{token_id}]>" if token_id is not None else json.dumps(piece, ensure_ascii=False)


def escaped(pattern: str) -> str:
    """A regular expression as it stands between two slashes."""
    return re.sub(r"(?<!\\)/", r"\\/", pattern).replace("\n", "\\n")
