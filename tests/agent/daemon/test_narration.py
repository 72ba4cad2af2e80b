"""What an owner is told while the agent runs."""

from molink_agent.daemon.narration import Narration, now_sentence

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
    told = Narration()
    assert told.update(status(connected=False)) == []
    assert told.update(status(state="joining")) == [
        "connected to http://a:1",
        "joining: measuring what this PC can do for the model, a minute at most",
    ]
    assert told.update(status(state="joining")) == []
    assert told.update(loading("downloading", 0.1)) == ["loading: layers 0 to 3 of demo"]
    assert told.update(loading("loading", 0.9)) == []
    assert told.update(status(state="serving", **HOLDS)) == [
        "serving: layers 0 to 3 of demo, on cpu"
    ]
    assert told.update(status(state="paused", reason="On battery.")) == ["paused: On battery."]


def test_a_lost_coordinator_is_told_and_its_return_too():
    told = Narration()
    told.update(status())
    (lost,) = told.update(status(connected=False))
    assert "out of reach" in lost
    assert told.update(status()) == ["connected to http://a:1"]


def test_why_a_stage_failed_is_told():
    told = Narration()
    told.update(status())
    failed = status(loaded={"kind": "failed", "fraction": 0.0, "message": "The disk is full."})
    assert told.update(failed) == ["the stage has failed: The disk is full."]
    assert told.update(failed) == []
    assert told.update(status()) == []
    assert told.update(failed) == ["the stage has failed: The disk is full."]


def test_a_mistake_in_the_limits_is_told():
    told = Narration()
    told.update(status())
    assert told.update(status(limits_problem="limits.toml: no")) == ["limits.toml: no"]


def test_progress_is_shown_where_there_is_some():
    assert "not connected" in now_sentence(status(connected=False))
    sentence = now_sentence(loading("downloading", 0.25))
    assert sentence == "loading: downloading the weights of layers 0 to 3 of demo, 25%"
    assert now_sentence(loading("loading", 0.5)) == "loading: layers 0 to 3 of demo, 50%"
    assert now_sentence(loading("loaded")) == "loading: layers 0 to 3 of demo"
    serving = now_sentence(status(state="serving", busy_share=0.5, **HOLDS))
    assert serving == "serving: layers 0 to 3 of demo, on cpu, busy 50% of the time"


def test_of_several_devices_each_is_told_by_its_name():
    def both(**changes):
        first = status(id="a", name="attic", device="cuda:0")
        second = status(id="b", name="attic (2)", **{"device": "cuda:1", **changes})
        return first | {"devices": [first, second]}

    told = Narration()
    assert told.update(both()) == [
        "connected to http://a:1",
        "cuda:0: standby: ready, until the coordinator needs it",
        "cuda:1: standby: ready, until the coordinator needs it",
    ]
    paused = both(device=None, state="paused", reason="No device.")
    assert told.update(paused) == ["attic (2): paused: No device."]
    assert now_sentence(paused).endswith("; attic (2): paused: No device.")
    assert told.update(both()) == ["cuda:1: standby: ready, until the coordinator needs it"]
    refused = both(connected=False, refused="Name fewer.", state="joining", reason="Name fewer.")
    assert told.update(refused) == ["cuda:1: joining: Name fewer."]
