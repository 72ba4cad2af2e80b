"""A model of its own that drafts for a ring, and beside which of its stages it stands."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Predicate

from molink.printable import plain_line

TROUBLE_CHARS_MAX = 400

DRAFTER_KV_TOKENS_MAX = 65_536
"""Tokens of a drafter's KV, at most: 16 users of 4,000 tokens. Further ones are served without."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Model that drafts for a ring: a small one on its head, or an assistant on its tail."""

    model: str
    """A local directory, or a hub id."""
    layers: Annotated[int, Ge(1)]
    name: Annotated[str, Predicate(str.isprintable)]
    """Name for people."""
    kv_tokens: Annotated[int, Ge(1)] = DRAFTER_KV_TOKENS_MAX
    """Tokens of KV that it may hold."""
    refused: str = ""
    """Why it is not to draft; empty: it is."""
    reads_from: Annotated[int, Ge(0)] | None = None
    """The first layer of the ring's model whose KV it reads, on the tail; None: it drafts on the
    head, by tokens alone."""

    @property
    def trouble(self) -> str:
        """A sentence on why it does not draft; empty: it is to."""
        if not self.refused:
            return ""
        sentence = f"The ring serves without the drafter {self.name}: {self.refused}"
        return plain_line(sentence)[:TROUBLE_CHARS_MAX]


def drafts_beside(layers: tuple[int, int], reads_from: int | None) -> bool:
    """Whether a model that drafts stands beside a stage's layers [start, end): the first ones, or
    those that it `reads_from`."""
    return layers[0] == 0 if reads_from is None else layers[0] <= reads_from < layers[1]
