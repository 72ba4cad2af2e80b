"""What a ring is told of its stages once they have loaded."""

from dataclasses import replace

import pytest

from molink.coordinator.upkeep.ring_building import with_caches
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.head.settings import RingTerms

LOADED = StageLoaded(5000, None, "cpu", "float32", 64, 0)


@pytest.mark.parametrize("drafts", [False, True])
def test_the_tail_says_whether_it_has_a_layer_that_drafts(drafts):
    """Also where another stage has taken its place since."""
    stages = [replace(LOADED, drafts=not drafts), LOADED, replace(LOADED, drafts=drafts)]
    terms = RingTerms(64, drafts_at_tail=not drafts)
    assert with_caches(terms, stages).drafts_at_tail == drafts
