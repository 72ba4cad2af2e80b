"""What stages have in common when all are in an epoch."""

import pytest

from molink_scheduler.kv.changes import AwayBlocks, RetainBlocks
from molink_scheduler.kv.tiers import CACHE_RUNS_MAX
from molink_scheduler.recovery.events import PlaceReady
from molink_scheduler.recovery.joining import common_away


def ready(*reports):
    return [PlaceReady(1, place, away=away) for place, away in reports]


def test_blocks_stay_that_all_stages_hold_in_one_tier():
    one = AwayBlocks(((1, 4),), ((10, 6),), 3)
    other = AwayBlocks(((2, 9),), ((1, 1), (12, 8)), 3)
    assert common_away(ready((1, other), (0, one))) == AwayBlocks(((2, 3),), ((12, 4),), 3)


@pytest.mark.parametrize(("place", "directory"), [(0, 3), (1, 3), (2, 3)])
def test_none_stay_where_one_stage_knows_another_directory(place, directory):
    reports = [AwayBlocks((), ((10, 6),), directory + (place == at)) for at in range(3)]
    common = common_away(ready(*enumerate(reports)))
    assert common == AwayBlocks(directory=reports[0].directory), "as the head numbers them"


def test_one_message_names_what_stays():
    runs = tuple((2 * at, 1) for at in range(CACHE_RUNS_MAX))
    few = runs[: CACHE_RUNS_MAX // 2]
    told = RetainBlocks.of(few, AwayBlocks(few[:100], runs, 3))
    assert (told.runs, told.away.host) == (few, few[:100])
    assert told.away.file == runs[: CACHE_RUNS_MAX // 2 - 100]
    assert told.names(CACHE_RUNS_MAX) and not told.names(CACHE_RUNS_MAX + 1)
    assert told.emptied == RetainBlocks(away=AwayBlocks(directory=3))
