from datetime import UTC

from molink.dashboard.plain import PlainNews
from tests.dashboard.scenes import cluster, event, history_of, look, slowed, steady


def test_lines_tell_what_changes_and_now_and_then_how_it_is():
    news, history = PlainNews(UTC), history_of(*steady())
    (status,) = news.lines(history)
    assert status == (
        "08:00:09 serving demo on 1 ring; 2 running, 1 waiting; 20.0 tokens/s; "
        "TTFT p50 0.50 s, TPOT p50 50 ms"
    )
    assert list(news.lines(history)) == []
    told = []
    for one in slowed():
        history.take(one)
        told += news.lines(history)
    assert len(told) == 1 and told[0].startswith("08:00:12 ! ben is 3.0 times as slow")
    history.take(look(31, events=[event(1, "loss", "ben", "ben is lost")]))
    assert next(news.lines(history)) == "08:00:01 ben is lost"
    over = []
    for at in range(32, 63):
        history.take(look(at))
        over += [one for one in news.lines(history) if "over:" in one]
    assert len(over) == 1 and "over: ben is 3.0 times as slow as it was" in over[0]


def test_how_it_is_is_said_every_ten_seconds():
    news, history = PlainNews(UTC), history_of(look(0))
    lines = list(news.lines(history))
    for at in range(1, 41):
        history.take(look(at))
        lines += news.lines(history)
    assert len(lines) == 3


def test_what_nobody_serves_is_said():
    history = history_of(look(0, cluster(unready_reason="No PC has joined yet.")))
    first, second = PlainNews(UTC).lines(history)
    assert first.endswith("! Requests are refused: No PC has joined yet.")
    assert "No PC has joined yet.; 2 running" in second


def test_what_becomes_worse_is_said_again():
    news, history = PlainNews(UTC), history_of(look(0, cluster(disk_free_bytes=500 * 10**6)))
    told = list(news.lines(history))
    for at, room in ((1, 400), (2, 30), (3, 500)):
        history.take(look(at, cluster(disk_free_bytes=room * 10**6)))
        told += news.lines(history)
    said = [one.partition("! ")[2] for one in told if "! " in one]
    assert [one.partition(":")[0] for one in said] == [
        "The coordinator's disk is nearly full",
        "The coordinator's disk is full",
    ]
