"""What a window's pool gives back after a step."""

import pytest

from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.window_pool import WindowPool
from molink_scheduler.batch import DRAFTS_MAX, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.layer_class import LayerClass, WindowBlocks

STARTS = range(100, 100 + BLOCK_TOKENS)
"""Blocks end somewhere else in each."""


def stepped(window: int, start: int, drafts: int) -> WindowPool:
    """A request's window behind `start` known tokens, and a step of one more and its drafts."""
    pool = WindowPool(WindowBlocks(LayerClass(frozenset({0}), window)), KvPool(BLOCK_TOKENS))
    for span in (
        Span(1, 0, start, samples=False),
        Span(1, start, start + 1 + drafts, samples=True, drafts=(5,) * drafts),
    ):
        pool.grow([span])
        pool.computed([span], ())
    return pool


@pytest.mark.parametrize("window", [1, 15, 40])
@pytest.mark.parametrize("drafts", [0, 1, 2, 3, 9, DRAFTS_MAX])
def test_drafts_leave_what_may_be_asked_for_again_after_a_loss(window, drafts):
    """17 tokens less the drafts, at most 15, before the step: its drafts may all have been wrong,
    so what is kept is counted from where they begin."""
    back = min(15, 17 - drafts)
    for start in STARTS:
        assert stepped(window, start, drafts).blocks.can_go_on(1, start - back)


@pytest.mark.parametrize("drafts", [0, DRAFTS_MAX])
def test_what_no_row_can_see_again_is_given_back(drafts):
    goes_back = [stepped(40, start, drafts).blocks.can_go_on(1, start - 32) for start in STARTS]
    assert not all(goes_back)
