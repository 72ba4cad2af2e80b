"""Names of GeForce cards as people write them: `3090`, `RTX 3060 12GB`, `4080 laptop`.

The cards themselves stand in `cards.toml`, with the source of each.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

WRITTEN = re.compile(
    r"(?:nvidia)?(?:geforce)?(?:rtx)?(?P<number>\d{4})(?P<words>(?:ti|super|d(?!\w)|laptop)*)"
    r"(?:(?P<gib>\d{1,3})gi?b?)?(?P<late>(?:laptop)?)"
)
"""A card's name without its spaces and dashes."""

LAPTOPS = re.compile(r"\s*[-_ ]?(?:laptop(?:\s*gpu)?|mobile|notebook)\b", re.IGNORECASE)
"""Words for a card in a laptop."""


class CardName(NamedTuple):
    """A card's name taken apart."""

    number: str
    words: frozenset[str]
    memory_gib: int | None
    """None: the name says nothing of it."""


@cache
def card_tables() -> Mapping[str, Mapping[str, Any]]:
    """Figures of each card by its name; of two memories the usual one first."""
    return tomllib.loads((files("molink.hardware") / "cards.toml").read_text(encoding="utf-8"))


def card_name(written: str) -> CardName | None:
    """The parts of a name; None for what is no GeForce card's."""
    plain = re.sub(r"[^a-z0-9]", "", LAPTOPS.sub("laptop", written.lower()))
    match = WRITTEN.fullmatch(plain)
    if match is None:
        return None
    words = re.findall("ti|super|laptop|d", match["words"] + match["late"])
    return CardName(match["number"], frozenset(words), int(match["gib"]) if match["gib"] else None)


def known_card(written: str) -> str | None:
    """The name under which a card stands in the table; None: it does not."""
    asked = card_name(written)
    for name, table in card_tables().items():
        known = card_name(name)
        if asked is None or known is None or asked[:2] != known[:2]:
            continue
        if asked.memory_gib in (None, table["memory_gib"]):
            return name
    return None
