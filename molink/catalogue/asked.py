"""PCs of which no more is known than their cards, as people write them: `2x 3090, 3060 12GB`."""

import re
from collections import Counter
from dataclasses import dataclass

from molink.catalogue.fits import Facts
from molink.config.node_file import LENT_SHARE, ListedNode, NodeFile
from molink.errors import UserError
from molink.hardware.gpu import Gpu, gpu
from molink_scheduler.placement import Goal
from molink_scheduler.units import GIB

COUNTED = re.compile(r"(?:(?P<count>\d{1,3})\s*[x×*]\s*)?(?P<name>.+)")

LINE = re.compile("/".join([r"(\d{1,6}(?:\.\d{1,3})?)"] * 3))
LINE_MAX = 100_000.0
"""Mbit/s and milliseconds beyond every home's."""

PCS_MAX = 16
"""Cards that are planned at once: for more, a plan of each model takes seconds."""


@dataclass(frozen=True, slots=True)
class HomeLine:
    """Line that each PC is taken to have."""

    upload_mbps: float = 40.0
    download_mbps: float = 100.0
    round_trip_ms: float = 30.0
    """Between two of them: as plans count where nothing was measured."""


def home_line(text: str) -> HomeLine:
    """The line of `40/100/30`. Raises UserError for anything else."""
    match = LINE.fullmatch(text.strip())
    numbers = [float(one) for one in match.groups()] if match else [0.0]
    if min(numbers[:2]) <= 0 or max(numbers) > LINE_MAX:
        raise UserError(
            f"--line takes Mbit/s up, Mbit/s down and ms there and back, such as 40/100/30, got "
            f"{text!r:.40}."
        )
    return HomeLine(*numbers)


def asked_pcs(text: str, line: HomeLine) -> NodeFile:
    """A PC for each card that is named. Raises UserError with a sentence for each that is not
    known."""
    cards, unknown = list[Gpu](), list[str]()
    for written in filter(None, (part.strip() for part in re.split(r"[,;+\n]", text))):
        match = COUNTED.fullmatch(written)
        count = int(match["count"] or 1) if match else 1
        try:
            cards += [gpu(match["name"] if match else written)] * min(count, PCS_MAX + 1)
        except UserError as error:
            unknown.append(str(error))
    if unknown:
        raise UserError("\n".join(sentence[:1].upper() + sentence[1:] for sentence in unknown))
    if not 1 <= len(cards) <= PCS_MAX:
        raise UserError(f"--for takes 1 to {PCS_MAX} cards, got {len(cards)}: --for '3090, 3060'.")
    seen = Counter[str]()
    return NodeFile(tuple(_pc(card, line, seen) for card in cards), {})


def card_facts(pcs: NodeFile) -> Facts:
    """The PCs as plans count with them."""
    return lambda planned: (pcs.facts(planned.shape, Goal().context_tokens), pcs.network())


def _pc(card: Gpu, line: HomeLine, seen: Counter[str]) -> ListedNode:
    seen[card.name] += 1
    number = seen[card.name]
    return ListedNode(
        name=card.name if number == 1 else f"{card.name} ({number})",
        upload_mbps=line.upload_mbps,
        download_mbps=line.download_mbps,
        one_way_ms=line.round_trip_ms / 4,
        lent_bytes=round(card.memory_gib * LENT_SHARE * GIB),
        device=card,
    )
