"""The capabilities whose figures are shown, in the order in which screens and metrics have them."""

from collections.abc import Iterator
from typing import Any

from molink.report.capability import StageCapability
from molink.report.cell import LENDERS
from molink.report.cluster import StageReport
from molink.report.drafts import DRAFTS
from molink.report.kv_pairs import PAIRS
from molink.report.prefix_cache import PREFIX_CACHE

STAGE_PARTS = (LENDERS, PAIRS)
RING_PARTS = (DRAFTS, PREFIX_CACHE)


def parts_of(stage: StageReport) -> Iterator[tuple[StageCapability, Any]]:
    """The parts that a stage's report has, and how each is shown."""
    every = ((one, getattr(stage, one.field)) for one in STAGE_PARTS)
    return (one for one in every if one[1] is not None)
