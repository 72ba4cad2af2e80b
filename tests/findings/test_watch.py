"""What stands out, judged from reports alone: what must be told is told within five seconds, and an
hour of ordinary load tells nothing."""

import math
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from molink.api.page.routes import ring_view
from molink.coordinator.ring.stage_watch import StageSeen, silences_s
from molink.findings.finding import KINDS, Severity
from molink.findings.watch import ClusterWatch
from molink.report.cluster import CertificateReport, ClusterReport
from molink.report.events import ClusterEvent
from molink.report.plain import from_plain
from tests.dashboard.scenes import START_S, cluster, node, stage

REPORT = from_plain(ClusterReport, cluster())
SOON_S = 5


def event(kind, after_s, node="ben", text=""):
    return ClusterEvent(int(after_s) + 1, START_S + after_s, kind, node, 1, text or kind)


def with_ring(report=REPORT, **more):
    return replace(report, rings=(replace(report.rings[0], **more),))


def told(watch):
    return [(one.severity.word, one.kind, one.sentence) for one in watch.findings]


def noted(*reports, events=(), seconds=1):
    """A watch that has seen each report after the one before, so many seconds apart."""
    watch = ClusterWatch()
    for at, report in enumerate(reports):
        now = START_S + seconds * at
        news = [one for one in events if now - seconds < one.unix_s <= now]
        watch.note(now, replace(report, unix_s=now), events=news)
    return watch


def seconds_until(kind, reports, events=()):
    """Seconds from when the trouble began, in the second report, until it is told."""
    for count in range(2, len(reports) + 1):
        if kind in [one.kind for one in noted(*reports[:count], events=events).findings]:
            return count - 2
    return math.inf


def loading(report=REPORT, name="ben"):
    nodes = [replace(one, state="loading") if one.name == name else one for one in report.nodes]
    return replace(report, nodes=tuple(nodes))


def quiet(seconds):
    return [with_ring(quiet_s=float(one)) for one in range(seconds)]


SLOW = {"stages": [stage("anna", 0), stage("ben", 8, 0.2), stage("carl", 16)]}
LOST = event("stage_lost", 24.0)
MINUTE = {"ended": 30, "refused": 14, "failed": 0}


@pytest.mark.parametrize(
    ("kind", "reports", "events"),
    [
        ("stage_lost", [REPORT] * 4, [event("stage_lost", 1.0)]),
        ("ring_stands", [REPORT, *quiet(8)], []),
        ("refusals", [REPORT] + [from_plain(ClusterReport, cluster(last_minute=MINUTE))] * 3, []),
        ("disk", [REPORT] + [replace(REPORT, disk_free_bytes=10**7)] * 3, []),
        ("key_refused", [REPORT] * 4, [event("key_refused", 1.0)]),
        ("unready", [REPORT] + [replace(REPORT, unready_reason="No ring.")] * 3, []),
    ],
)
def test_what_must_be_told_is_told_within_seconds(kind, reports, events):
    assert seconds_until(kind, reports, events) <= SOON_S


def test_a_lost_coordinator_is_told_with_when_it_was_seen():
    watch = noted(REPORT)
    watch.failed(START_S + 3, "No answer from the coordinator: it refused the connection")
    (found,) = told(watch)
    assert found[:2] == ("bad", "no_answer") and found[2].endswith("connection. Last seen 3 s ago.")
    watch.note(START_S + 4, REPORT)
    assert told(watch) == []


def test_a_lost_stage_is_told_until_the_ring_goes_on_and_then_how_long_it_took():
    events = [event("stage_lost", 1.0), event("ring_resumed", 5.6, node="")]
    watch = noted(REPORT, *[loading()] * 5, events=events)
    sentence = "ben's stage is lost; ben loads it again, 3 answers wait."
    assert told(watch) == [("bad", "stage_lost", sentence)]
    watch = noted(REPORT, *[loading()] * 5, REPORT, events=events)
    assert told(watch) == [("note", "resumed", "Ring 1 went on after 4.6 s: it had lost ben.")]
    assert told(noted(*[REPORT] * 66, events=events))
    assert told(noted(*[REPORT] * 67, events=events)) == []


def test_a_ring_that_has_ended_has_no_lost_stage_any_more():
    events = [event("stage_lost", 1.0), event("ring_ended", 2.0, node="")]
    assert told(noted(*[REPORT] * 4, events=events)) == []


def test_others_load_what_a_lost_stage_had():
    watch = noted(REPORT, loading(name="anna"), events=[event("stage_lost", 1.0)])
    assert told(watch)[0][2] == "ben's stage is lost; anna loads its layers, 3 answers wait."


def test_who_is_lost_is_not_slow_as_well():
    """It was, until it was lost: the finding would stay for ten seconds, and its last steps for
    five."""
    slow = ClusterWatch()
    for at, body in enumerate([*[None] * 12, *[SLOW] * 12]):
        slow.note(START_S + at, from_plain(ClusterReport, cluster(**body or {})))
    assert [one.kind for one in slow.findings] == ["slow"]
    slow.note(START_S + 24, from_plain(ClusterReport, cluster(**SLOW)), events=[LOST])
    assert "slow" not in [one.kind for one in slow.findings]
    nodes = [node("anna", 0), node("ben", 8, state="lost"), node("carl", 16)]
    slow.note(START_S + 25, from_plain(ClusterReport, cluster(nodes=nodes, **SLOW)))
    assert "slow" not in [one.kind for one in slow.findings]


def test_a_silent_stage_is_told_and_the_ring_does_not_stand_besides():
    stages = [replace(one, silent_s=2.0 * (one.node == "ben")) for one in REPORT.rings[0].stages]
    watch = noted(with_ring(stages=tuple(stages), quiet_s=9.0))
    assert told(watch) == [
        ("bad", "stage_silent", "ben has said nothing for 2 s, and ring 1 waits for it.")
    ]


@pytest.mark.parametrize(("round_s", "stands"), [(0.06, True), (2.0, False)])
def test_a_ring_stands_by_its_own_pace(round_s, stands):
    first, *others = REPORT.rings[0].stages
    stages = (replace(first, decode_round_s=round_s), *others)
    found = told(noted(with_ring(stages=stages, quiet_s=4.0)))
    sentence = "Ring 1 stands: no token for 4 s, 2 answers under way."
    assert found == ([("bad", "ring_stands", sentence)] if stands else [])


def test_one_refused_request_among_many_is_no_outage():
    minute = {"ended": 200, "refused": 1, "failed": 2}
    watch = noted(from_plain(ClusterReport, cluster(last_minute=minute)))
    assert [one[:2] for one in told(watch)] == [("warning", "refusals"), ("warning", "failures")]


def test_a_disk_is_full_or_nearly():
    for room, severity in ((10**7, "bad"), (5 * 10**8, "warning")):
        assert told(noted(replace(REPORT, disk_free_bytes=room)))[0][0] == severity
    assert told(noted(replace(REPORT, disk_free_bytes=10**11))) == []


DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("days", "severity", "sentence"),
    [
        (15, None, ""),
        (13, "warning", "The certificate that users are shown ends at 2"),
        (-1, "bad", "The certificate that users are shown has ended at 2"),
    ],
)
def test_a_certificate_that_ends_is_told_two_weeks_before(days, severity, sentence):
    certificates = (
        CertificateReport("api", START_S + days * DAY_S),
        CertificateReport("agents", START_S + 1000 * DAY_S),
    )
    found = told(noted(replace(REPORT, certificates=certificates)))
    assert [one[:2] for one in found] == [(severity, "certificate")] * bool(severity)
    assert all(one[2].startswith(sentence) for one in found)


def alone(step_s):
    body = cluster(stages=[stage("dora", 0, step_s)], nodes=[node("dora", 0)])
    return from_plain(ClusterReport, body)


def test_a_ring_of_one_pc_is_not_slow_because_more_is_asked_of_it():
    reports = [alone(0.004)] * 60 + [alone(0.028)] * 60
    assert told(noted(*reports)) == []


def paced(step_s):
    stages = [stage("anna", 0), stage("ben", 8), stage("carl", 16, step_s)]
    nodes = [node(name, 8 * at, profile=None) for at, name in enumerate(("anna", "ben", "carl"))]
    return from_plain(ClusterReport, cluster(stages=stages, nodes=nodes))


def test_what_is_on_the_edge_does_not_come_and_go():
    random, watch, shown = Random(7), ClusterWatch(), []
    for at in range(240):
        watch.note(START_S + at, paced(0.024 + random.uniform(-0.006, 0.006)))
        shown.append(bool(watch.findings))
    changes = sum(one != other for one, other in pairwise(shown))
    assert any(shown) and changes <= 10


def seen(random):
    """A stage that reports twice a second, a report late at times; now and then its line stands
    still, and it misses a neighbour."""
    missed_s = 1.5 if random.random() < 0.02 else 0.0
    return StageSeen(reported_at=-random.uniform(0.0, 0.95), previous_silent_s=missed_s)


def ordinary(random, at):
    """A report of a ring under load that rises and falls within minutes, on PCs of different speed
    whose owners use them, over home links."""
    load = 1 + 4 * (0.5 + 0.5 * math.sin(at / 90))
    busy = [random.uniform(0.85, 1.25) for _ in range(3)]
    steps = [0.012 * load * one * slow for one, slow in zip(busy, (1.0, 1.2, 0.9), strict=True)]
    silent = silences_s([seen(random) for _ in steps], now=0.0)
    stages = tuple(
        replace(one, decode_step_s=step_s, silent_s=silent_s)
        for one, step_s, silent_s in zip(REPORT.rings[0].stages, steps, silent, strict=True)
    )
    links = tuple(
        replace(one, decode_queued_bytes=random.randrange(200_000), bytes_sent=at * 900_000)
        for one in REPORT.rings[0].links
    )
    pause_s = 2.5 if random.random() < 0.02 else random.uniform(0.0, 0.3)
    single = replace(alone(0.004 * load * busy[0]).rings[0], number=2, quiet_s=pause_s)
    rings = replace(REPORT.rings[0], stages=stages, links=links, quiet_s=pause_s), single
    minute = replace(from_plain(ClusterReport, cluster(last_minute=MINUTE)).last_minute, refused=0)
    return replace(REPORT, rings=rings, last_minute=minute, disk_free_bytes=10**11)


def test_an_hour_of_ordinary_load_tells_nothing_bad():
    random, watch, bad, waits = Random(3), ClusterWatch(), set(), set()
    for at in range(0, 3600, 4):
        watch.note(START_S + at, report := ordinary(random, at))
        bad |= {one.sentence for one in watch.findings if one.severity is not Severity.NOTE}
        waits |= {ring["waits_for"] for ring in ring_view(report, None)["rings"]}
    assert not bad and waits == {None}, "of those, the page tells of a stage that is silent"


def test_each_kind_says_what_to_do_and_has_its_severities():
    report = noted(replace(REPORT, disk_free_bytes=1)).report()
    (found,) = report.findings
    assert (found.id, found.severity, found.kind) == ("disk", "bad", "disk")
    assert found.remedy == KINDS["disk"].remedy and found.since_unix_s == START_S
    assert all(kind.remedy.endswith(".") and kind.severities for kind in KINDS.values())
