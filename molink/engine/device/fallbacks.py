"""Words for why a card computes something in a slower way, as the log and `/cluster` tell them.

Libraries and drivers explain themselves in pages; the first line tells what is wrong.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

LINE_CHARACTERS_MAX, CLAUSE_CHARACTERS_MAX = 120, 200
"""Characters of one reason, and of all that a message carries."""


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """Parts that a stage computes in a slower way than it could, and why; None: it does not."""

    attention: str | None
    """Reason why torch computes attention, in place of our kernel."""
    fusion: str | None
    """Reason why torch's operations stand between a layer's products in place of kernels."""
    decode: str | None
    """Decode steps that are launched, all or some, in place of replayed."""
    swaps: str | None
    """Modules that are computed the library's way, as faster ones were off with their weights."""


def first_line(error: Exception) -> str:
    """The kind of an error and its first line, printable."""
    line = f"{type(error).__name__}: {error}".partition("\n")[0][:LINE_CHARACTERS_MAX]
    return _printable(line)


def one_clause(reasons: Iterable[tuple[str, str]], unit: str = "") -> str | None:
    """Clause for (what, why) pairs; those with the same reason, one after another, share it: `64,
    32 rows: no room; 8 rows: differs`. None: there are no pairs."""
    groups = groupby(reasons, itemgetter(1))
    parts = (f"{', '.join(what for what, _ in group)}{unit}: {why}" for why, group in groups)
    return printed("; ".join(parts))


def printed(text: str) -> str | None:
    """Text as a message carries it, cut and printable; None where there is none."""
    return _printable(text)[:CLAUSE_CHARACTERS_MAX] or None


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
