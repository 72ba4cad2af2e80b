"""Puts what a card has shown into a page, under its name, and leaves the rest of the page alone."""

import re

from molink.errors import UserError

__all__ = ["BEGIN", "END", "with_card"]

BEGIN, END = "<!-- make gpu -->", "<!-- end of make gpu -->"

HEADING = re.compile(r"^### (.+)$", re.MULTILINE)


def with_card(page: str, card: str, text: str) -> str:
    """The page with `text` in place of what it said of this card, cards in order of their names.

    Raises UserError when the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    measured, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"the page has no place for figures: {BEGIN} and {END}")
    _, *parts = HEADING.split(measured)
    cards = dict(zip(parts[::2], (one.strip() for one in parts[1::2]), strict=True))
    cards[card] = text.strip()
    told = "\n\n".join(f"### {name}\n\n{cards[name]}" for name in sorted(cards))
    return f"{before}{begin}\n\n{told}\n\n{end}{after}"
