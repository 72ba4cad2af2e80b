"""What an owner is news while the agent runs."""

import pytest

from molink_agent.status_text import StatusNews, now_sentence, status_lines
from molink_scheduler.units import GB

STATUS = {
    "cluster": "http://a:1",
    "connected": True,
    "state": "standby",
    "reason": "",
    "layers": None,
    "model": None,
    "device": None,
    "loaded": None,
    "busy_share": 0.0,
    "limits_problem": "",
}
HOLDS = {"layers": [0, 4], "model": "demo", "device": "cpu"}


def status(**changes):
    return STATUS | changes


def loading(kind, fraction=0.0, message=""):
    loaded = {"kind": kind, "fraction": fraction, "message": message}
    return status(state="loading", loaded=loaded, **HOLDS)


def test_each_change_is_told_once():
    news = StatusNews()
    assert news.update(status(connected=False)) == []
    assert news.update(status(state="joining")) == [
        "connected to http://a:1",
        "joining: measuring what this PC can do for the model, a minute at most",
    ]
    assert news.update(status(state="joining")) == []
    assert news.update(loading("downloading", 0.1)) == ["loading: layers 0 to 3 of demo"]
    assert news.update(loading("loading", 0.9)) == []
    assert news.update(status(state="serving", **HOLDS)) == [
        "serving: layers 0 to 3 of demo, on cpu"
    ]
    assert news.update(status(state="paused", reason="On battery.")) == ["paused: On battery."]


def test_a_lost_coordinator_is_told_and_its_return_too():
    news = StatusNews()
    news.update(status())
    (lost,) = news.update(status(connected=False))
    assert "out of reach" in lost
    assert news.update(status()) == ["connected to http://a:1"]


def test_why_a_stage_failed_is_told():
    news = StatusNews()
    news.update(status())
    failed = status(loaded={"kind": "failed", "fraction": 0.0, "message": "The disk is full."})
    assert news.update(failed) == ["the stage has failed: The disk is full."]
    assert news.update(failed) == []
    assert news.update(status()) == []
    assert news.update(failed) == ["the stage has failed: The disk is full."]


def test_a_neighbour_that_is_gone_is_no_failure_of_this_stage():
    news = StatusNews()
    news.update(status())
    why = "nothing is acknowledged on the link 'next'"
    lost = {"kind": "failed", "fraction": 0.0, "message": why, "link_lost": True}
    (told,) = news.update(status(loaded=lost))
    assert told.startswith("the ring is built anew") and told.endswith(why)


def test_a_mistake_in_the_limits_is_told():
    news = StatusNews()
    news.update(status())
    assert news.update(status(limits_problem="limits.toml: no")) == ["limits.toml: no"]


def test_progress_is_shown_where_there_is_some():
    assert "not connected" in now_sentence(status(connected=False))
    sentence = now_sentence(loading("downloading", 0.25))
    assert sentence == "loading: downloading the weights of layers 0 to 3 of demo, 25%"
    assert now_sentence(loading("loading", 0.5)) == "loading: layers 0 to 3 of demo, 50%"
    assert now_sentence(loading("loaded")) == "loading: layers 0 to 3 of demo"
    serving = now_sentence(status(state="serving", busy_share=0.5, **HOLDS))
    assert serving == "serving: layers 0 to 3 of demo, on cpu, busy 50% of the time"


@pytest.mark.parametrize(
    ("why", "line"),
    [
        ("", "cache:   0.4 GB of main memory, 3.0 GB at most"),
        (
            "others need the memory",
            "cache:   0.4 GB of main memory, 3.0 GB at most; others need the memory",
        ),
    ],
)
def test_main_memory_for_cached_kv_is_shown_and_why_it_is_not_more(why, line):
    cache = {"taken_bytes": 8 * GB, "room_bytes": 3 * GB, "held_bytes": 4 * GB // 10}
    parts = {"paths": {}, "lends": [], "limits": {}, "id": "a", "name": "attic"}
    device = status(**parts, host_cache=cache | {"why_less": why})
    assert line in [*status_lines(device | {"devices": [device]})]
    device = status(**parts)
    assert not any("cache" in one for one in status_lines(device | {"devices": [device]}))


def test_of_several_devices_each_is_told_by_its_name():
    def both(**changes):
        first = status(id="a", name="attic", device="cuda:0")
        second = status(id="b", name="attic (2)", **{"device": "cuda:1", **changes})
        return first | {"devices": [first, second]}

    news = StatusNews()
    assert news.update(both()) == [
        "connected to http://a:1",
        "cuda:0: standby: ready, until the coordinator needs it",
        "cuda:1: standby: ready, until the coordinator needs it",
    ]
    paused = both(device=None, state="paused", reason="No device.")
    assert news.update(paused) == ["attic (2): paused: No device."]
    assert now_sentence(paused).endswith("; attic (2): paused: No device.")
    assert news.update(both()) == ["cuda:1: standby: ready, until the coordinator needs it"]
    refused = both(connected=False, refused="Name fewer.", state="joining", reason="Name fewer.")
    assert news.update(refused) == ["cuda:1: joining: Name fewer."]


def downloading(fraction, total_bytes):
    one = loading("downloading", fraction)
    one["loaded"] |= {"total_bytes": total_bytes, "bytes_per_s": 12.5e6}
    return one


def test_a_download_tells_bytes_rate_and_the_time_left():
    assert now_sentence(downloading(0.25, 2.6e9)).endswith(
        "layers 0 to 3 of demo, 25%, 0.7 of 2.6 GB, 12.5 MB/s, 3 min left"
    )


def test_a_long_download_is_told_at_its_quarters():
    news = StatusNews()
    told = [news.update(downloading(fraction / 100, 2.6e9)) for fraction in range(101)]
    lines = [line for lines in told[1:] for line in lines]
    assert [line.split(", ")[1] for line in lines] == ["25%", "50%", "75%"]
    assert news.update(downloading(0.1, 2.6e9)) == [], "it has begun anew"


def test_a_short_download_is_not():
    news = StatusNews()
    news.update(downloading(0.1, 50e6))
    assert news.update(downloading(0.9, 50e6)) == []
