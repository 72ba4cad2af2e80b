"""Thanks: people are counted and never named, nights end at noon, and only who agrees is ranked."""

from datetime import datetime

import pytest

from molink.coordinator.reports import thanks as module
from molink.coordinator.reports.thanks import AGREED_S, PeopleHelped
from molink.report.plain import to_plain
from molink.report.requests import StageLayers
from molink.serving.timeline import RequestTimeline

EVENING = datetime(2026, 11, 21, 22, 0).timestamp()
HOUR_S = 3600.0
PCS = {"anna": "pc-1", "anna-2": "pc-1", "ben": "pc-2", "carl": "pc-3"}
GIVEN = {"anna": 10, "anna-2": 5, "ben": 40, "carl": 1}


class Clock:
    now = EVENING

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def thanks(clock):
    return PeopleHelped(lambda: PCS, lambda: GIVEN, clock)


def answered(thanks, key_id, *rings, tokens=3):
    """A request that these rings have computed, one after the other."""
    timeline = RequestTimeline("demo", 1, 9, key_id)
    for number, names in enumerate(rings):
        timeline.submitted(number, [StageLayers(name, (0, 1)) for name in names], 0.0)
        timeline.attempts[-1].tokens = tokens
    thanks.ended(timeline)


def counts(told):
    return told.people, told.answers, told.cluster_people, told.cluster_answers


def test_people_are_counted_once_and_answers_each(thanks):
    answered(thanks, "k1", ["anna", "anna-2"])
    answered(thanks, "k1", ["anna"], ["ben"])
    answered(thanks, "k2", ["ben"])
    answered(thanks, None, ["ben"])
    answered(thanks, None, ["ben"])
    assert counts(thanks.report("pc-1", agrees=False)) == (1, 2, 3, 5)
    assert counts(thanks.report("pc-2", agrees=False)) == (3, 4, 3, 5)
    assert counts(thanks.report("pc-3", agrees=False)) == (0, 0, 3, 5)


def test_no_key_leaves_the_coordinator(thanks):
    answered(thanks, "secret-key", ["anna"])
    assert "secret-key" not in repr(to_plain(thanks.report("pc-1", agrees=True)))


def test_who_got_no_token_was_not_helped(thanks):
    answered(thanks, "k1", ["anna"], tokens=0)
    answered(thanks, "k1")
    answered(thanks, "k1", ["of nobody"])
    assert thanks.report("pc-1", agrees=False).people == 0


def test_a_night_ends_at_noon(thanks, clock):
    answered(thanks, "k1", ["anna"])
    clock.now = EVENING + 13 * HOUR_S
    assert counts(thanks.report("pc-1", agrees=False)) == (1, 1, 1, 1)
    clock.now = EVENING + 15 * HOUR_S
    told = thanks.report("pc-1", agrees=False)
    assert counts(told) == (0, 0, 0, 0)
    assert told.since_unix_s == EVENING + 14 * HOUR_S


def test_a_coordinator_counts_from_its_start(thanks):
    assert thanks.report("pc-1", agrees=False).since_unix_s == EVENING


def test_names_are_for_those_who_agree(thanks, clock):
    assert [one.name for one in thanks.report("pc-1", agrees=True).ranking] == ["anna"]
    assert thanks.report("pc-3", agrees=False).ranking == ()
    ranking = thanks.report("pc-2", agrees=True).ranking
    assert [(one.name, one.token_layers, one.is_you) for one in ranking] == [
        ("ben", 40, True),
        ("anna", 15, False),
    ]
    thanks.report("pc-1", agrees=False)
    assert [one.name for one in thanks.report("pc-2", agrees=True).ranking] == ["ben"]


def test_who_has_not_asked_for_a_day_is_left_out(thanks, clock):
    thanks.report("pc-1", agrees=True)
    clock.now += AGREED_S + 1
    assert [one.name for one in thanks.report("pc-2", agrees=True).ranking] == ["ben"]


def test_who_asks_is_in_the_ranking_wherever_it_stands(thanks, monkeypatch):
    monkeypatch.setattr(module, "RANKED_MAX", 1)
    for pc in ("pc-1", "pc-2"):
        thanks.report(pc, agrees=True)
    assert [one.name for one in thanks.report("pc-3", agrees=True).ranking] == ["ben", "carl"]
