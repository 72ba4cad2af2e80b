"""How much of its prompts a ring had cached, since its start and of late."""

import pytest

from molink.coordinator.ring.cache_use import RECENT_REQUESTS, CacheUse
from molink.report.prefix_cache import CachedBelow, CacheReport
from molink.stage_protocol.health import CacheTiersHealth, PackingHealth, StageHealth


def test_nothing_is_a_share_of_no_prompts():
    assert CacheUse().report(None) == CacheReport(None, 0, None, None, None)


def test_the_head_tells_what_lower_tiers_hold():
    tiers = CacheTiersHealth(32, 64, 16, 0)
    side = PackingHealth("raw", 0, 0, 0.0)
    health = StageHealth(
        0, 0.0, 0.0, 0, 0, 0, 0, side, side, 0, None, None, 0.0, 0.0, (), cache_tiers=tiers
    )
    assert CacheUse().report(health).tiers == CachedBelow(32, 64, 16, 0)


def test_the_share_is_of_tokens():
    use = CacheUse()
    use.began(10, 0)
    use.began(90, 80)
    told = use.report(None)
    assert (told.requests, told.hit_rate, told.recent_hit_rate) == (2, 0.8, 0.8)


def test_recent_requests_are_a_window():
    use = CacheUse()
    for _ in range(RECENT_REQUESTS):
        use.began(100, 50)
    for _ in range(RECENT_REQUESTS):
        use.began(100, 0)
    told = use.report(None)
    assert (told.hit_rate, told.recent_hit_rate) == (0.25, 0.0)


@pytest.mark.parametrize(("reported", "counted"), [(-5, 0), (2**60, 10), (7, 7)])
def test_what_no_tail_can_have_cached_is_not_counted(reported, counted):
    use = CacheUse()
    use.began(10, reported)
    assert use.cached_tokens == counted
