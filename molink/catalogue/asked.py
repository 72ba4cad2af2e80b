"""PCs of which no more is known than their cards, as people write them: `2x 3090, 3060 12GB`."""

import re
from collections import Counter
from dataclasses import dataclass

from molink.config.node_file import LENT_SHARE, ListedNode, NodeFile
from molink.errors import UserError
from molink.hardware.gpu import Gpu, gpu
from molink_scheduler.units import GIB

COUNTED = re.compile(r"(?:(?P<count>\d{1,3})\s*[x×*]\s*)?(?P<name>.+)")

PCS_MAX = 32
"""Cards that are planned at once: for more, a plan of each model takes seconds."""


@dataclass(frozen=True, slots=True)
class HomeLine:
    """Line that each PC is taken to have."""

    upload_mbps: float = 40.0
    download_mbps: float = 100.0
    round_trip_ms: float = 30.0
    """Between two of them: as plans count where nothing was measured."""


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
