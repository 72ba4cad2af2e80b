import pytest

from molink.dashboard.model.history import History
from molink.findings.series import GAP_S, HISTORY_S, percentile
from tests.dashboard.scenes import (
    cluster,
    event,
    history_of,
    link,
    look,
    node,
    steady,
    timeline,
)


def test_tokens_a_second_are_the_differences_of_looks():
    history = history_of(*steady(3))
    assert history.tokens_per_s() == [20.0, 20.0]


def test_a_request_that_has_ended_or_come_between_counts_once():
    before, after = [timeline(1, 5)], [timeline(2, 3), timeline(1, 9, state="ended")]
    history = history_of(look(0, requests=before), look(1, requests=after))
    assert history.tokens_per_s() == [14.0]


def test_over_a_gap_there_is_no_rate():
    later = look(2 * (GAP_S + 1), requests=[timeline(1, 500)])
    assert history_of(look(0, requests=[timeline(1, 5)]), later).tokens_per_s() == []


def test_a_link_is_busy_by_what_it_has_sent():
    def body(sent):
        return cluster(links=[link("anna", "ben", bytes_sent=sent, rate_mbps=8.0)])

    history = history_of(look(0, body(0)), look(1, body(250_000)))
    assert history.link_busy(("anna", "ben")) == pytest.approx(0.5)
    history.take(look(2, body(100)))  # A stage that was started anew counts from 0.
    assert history.link_busy(("anna", "ben")) is None


def test_only_the_last_minutes_are_kept():
    history = history_of(*(look(at) for at in range(0, int(4 * HISTORY_S), 4)))
    assert history.at_s - history.samples[0].at_s <= HISTORY_S


def test_a_failed_look_changes_nothing_but_that():
    history = history_of(*steady(3), look(4, trouble="cannot reach it"))
    assert history.trouble == "cannot reach it"
    assert history.state.rings and history.answered_at_s < history.at_s
    history.take(look(5))
    assert history.trouble == ""


def test_events_come_once():
    history = history_of(look(0, events=[event(1), event(2)]), look(1, events=[event(2), event(3)]))
    assert [one.seq for one in history.events] == [1, 2, 3]


def test_only_who_was_here_is_newly_lost():
    gone = [node("anna", 0, state="lost"), node("old", state="lost")]
    history = history_of(look(0, cluster(nodes=[node("anna", 0), gone[1]])))
    history.take(look(1, cluster(nodes=gone)))
    assert list(history.lost_at_s) == ["a" * 16]
    history.take(look(2, cluster(nodes=[node("anna", 0), gone[1]])))
    assert history.lost_at_s == {}


def test_ttft_and_tpot_are_of_recent_requests():
    old = timeline(1, age_s=HISTORY_S + 1, queue_s=9.0)
    history = history_of(look(0, requests=[old, timeline(2)]))
    assert history.ttfts_s() == [0.5]
    assert history.tpots_s() == [0.05]


def test_a_server_without_lists_is_told_apart():
    history = History()
    seen = look(0)
    history.take(type(seen)(seen.at_s, seen.cluster))
    assert history.requests is None and not history.knows_events


@pytest.mark.parametrize(("part", "found"), [(0.0, 1), (0.5, 6), (0.95, 10), (1.0, 10)])
def test_percentiles_by_nearest_rank(part, found):
    assert percentile(range(1, 11), part) == found


def test_of_nothing_there_is_no_percentile():
    assert percentile([], 0.5) is None


def test_events_of_a_coordinator_that_was_started_anew_come_too():
    history = history_of(look(0, events=[event(8)]))
    history.take(look(1, events=[event(1) | {"unix_s": event(9)["unix_s"]}]))
    assert [one.seq for one in history.events] == [8, 1]


def test_ended_requests_are_kept_though_they_are_told_once():
    ended = timeline(1, 9, state="ended", finish_reason="length")
    history = history_of(look(0, requests=[timeline(2), ended]), look(1, requests=[timeline(2)]))
    assert [one.tokens for one in history.requests] == [10, 9]
    history.take(look(2, requests=[ended]))  # Told twice, it counts once.
    assert len(history.requests) == 1
    history.at_s += HISTORY_S
    assert history.recent() == []
