"""Lines between a stage and its supervisor."""

import pytest

from molink.errors import FrameError
from molink.stage_protocol import messages as supervision
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink.stage_protocol.messages import decode_line, encode_line
from molink.wire.curve_keys import CurveKeys
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.link.facts import LinkReport

LINK = LinkReport(
    name="next",
    messages_sent=1,
    bytes_sent=2,
    decode_waiting=0,
    prefill_waiting=1,
    decode_queued_bytes=0,
    prefill_queued_bytes=9,
    chunk_bytes=4096,
    rate_mbps=20.5,
    rtt_ms=60.0,
    queueing_delay_ms=1.5,
    in_flight_bytes=3,
    foreign_upload=False,
    acks_refused=0,
)

KEYS = ("a" * 40, "b" * 40)

PACKED = PackingHealth("int8", 200, 104, 0.01)


@pytest.mark.parametrize(
    "value",
    [
        supervision.LoadStage("demo", supervision.StageWork((0, 4), "cpu", "auto"), "127.0.0.1"),
        supervision.LoadStage(
            *("demo", supervision.StageWork((0, 4), "cpu", "auto"), "127.0.0.1"),
            keys=CurveKeys(*KEYS, KEYS),
        ),
        supervision.SetAllowed(()),
        supervision.SetAllowed(KEYS),
        supervision.MovePath("next", "tcp://a:1"),
        supervision.PathMoved("coordinator", "tcp://a:1", False, "nobody answers"),
        supervision.LoadProgressed(0.5),
        supervision.StageLoaded(1, None, "cpu", "float32", 128, 10),
        supervision.StageReady(),
        StageHealth(0, 1.5, 0.5, 3, None, 2, 0, PACKED, PACKED, 5, None, 1, 0.1, 0.2, (LINK,)),
        supervision.JoinRing(1, "tcp://a:1", None, RingTerms(64, None, (1, 2), 128), None),
        supervision.JoinRing(
            *(1, "tcp://a:1", None, RingTerms(64, None, (1, 2), 128), None),
            next_key=KEYS[0],
            coordinator_key=KEYS[1],
        ),
        supervision.FollowRing(1, RingTerms(64, None, (1, 2), 128)),
        supervision.StageFailed("It is broken.", user_fault=True),
    ],
)
def test_a_line_comes_back_as_it_was(value):
    line = encode_line(value)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode_line(line) == value


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b'{"kind": "exit"}',
        b'{"kind": "stage_ready", "more": 1}',
        b"\xff",
        b'{"kind": "set_allowed", "keys": ["short"]}',
        b'{"kind": "set_allowed", "keys": 7}',
        b'{"kind": "move_path", "link": "back", "address": "tcp://a:1"}',
    ],
)
def test_anything_else_is_refused(line):
    with pytest.raises(FrameError):
        decode_line(line)


def test_a_stage_never_shows_the_secret_half_of_its_keys():
    load = supervision.LoadStage(
        "demo", supervision.StageWork((0, 4), "cpu", "auto"), "a", keys=CurveKeys(*KEYS)
    )
    assert KEYS[1] not in repr(load) and KEYS[1].encode() in encode_line(load)
