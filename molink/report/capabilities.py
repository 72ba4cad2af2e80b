"""The capabilities whose figures are shown, in the order in which screens and metrics have them."""

from molink.report.cell import LENDERS
from molink.report.drafts import DRAFTS
from molink.report.hand_over import PAIRS
from molink.report.prefix_cache import PREFIX_CACHE

STAGE_PARTS = (LENDERS, PAIRS)
RING_PARTS = (DRAFTS, PREFIX_CACHE)
