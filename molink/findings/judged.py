"""Judgement of what stands out in a cluster, of its series alone.

What a coordinator tells of itself comes first: that it refuses, which stages are lost or silent,
how much room its disk has. What no single report can tell is found by comparison (`stages`).
Nothing is said without something to compare with, and nothing of a time that was not seen.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from molink.findings.finding import BAD, NOTE, WARNING, Finding
from molink.findings.interruptions import interruption_findings
from molink.findings.series import Series
from molink.findings.stages import slow_stages, slowest_stage
from molink.report.cluster import RingLink

LOST_S = 600.0
"""Seconds for which a node that was lost before our eyes is news."""

DECODE_WAIT_S = 0.25
"""Decode that waits longer for its link than a token may take is felt by every user."""

LINK_BUSY = 0.95
"""A link so busy is full: what is sent besides waits."""

KEY_REFUSED_S = 300.0
"""Seconds for which the use of a key that opens nothing any more is news: who holds it tries
again."""

CERTIFICATE_ENDS_S = 14 * 86_400.0
"""Time left to a certificate from which it is news: authorities that renew by themselves do so a
month before, so that something is wrong then."""

CERTIFICATES = {
    "api": "The certificate that users are shown",
    "agents": "The certificate that agents are shown",
    "authority": "The certificate of --tls-ca",
}

TROUBLE_ID_CHARS = 60
"""Characters of a sentence on trouble that tell it from others."""

REFUSED_BAD = 0.1
"""Share of refused requests from which users feel it as an outage."""

DISK_FULL_BYTES, DISK_SHORT_BYTES = 64 * 10**6, 10**9
"""Room below which the coordinator's files can soon not be written, and below which an operator
has a day or so to make some."""


def judged(series: Series) -> list[Finding]:
    """All that stands out at this look, the worst first."""
    found = [
        *_service_findings(series),
        *interruption_findings(series),
        *_certificate_findings(series),
        *_intake_findings(series),
        *_loss_findings(series),
        *_stage_findings(series),
        *_links_findings(series),
        *_node_findings(series),
        *_key_findings(series),
    ]
    return sorted(found, key=lambda one: one.severity)


def _service_findings(series: Series) -> Iterator[Finding]:
    state = series.state
    if series.trouble:
        sentence = f"{series.trouble.rstrip('.')}.{_last_seen(series)}"
        yield Finding(BAD, "no_answer", "", sentence)
    if state.intake_paused:
        yield Finding(
            WARNING, "intake_paused", "", "The intake is paused: new requests are refused."
        )
    elif state.unready_reason:
        yield Finding(BAD, "unready", "", f"Requests are refused: {state.unready_reason}")
    for trouble in state.troubles:
        yield Finding(BAD, "trouble", "", trouble, trouble[:TROUBLE_ID_CHARS])
    room = state.disk_free_bytes
    if room is not None and room < DISK_SHORT_BYTES:
        is_full = room < DISK_FULL_BYTES
        how = "is full" if is_full else "is nearly full"
        sentence = f"The coordinator's disk {how}: {room / 1e6:.0f} MB are left."
        yield Finding(BAD if is_full else WARNING, "disk", "", sentence)


def _certificate_findings(series: Series) -> Iterator[Finding]:
    """Certificates that end soon, or have."""
    for one in series.state.certificates or ():
        left_s = one.ends_unix_s - series.now_unix_s
        if left_s >= CERTIFICATE_ENDS_S:
            continue
        ends = f"{datetime.fromtimestamp(one.ends_unix_s, UTC):%Y-%m-%d %H:%M} UTC"
        how = f"ends at {ends}" if left_s > 0 else f"has ended at {ends}, and is refused"
        sentence = f"{CERTIFICATES.get(one.name, one.name)} {how}."
        yield Finding(WARNING if left_s > 0 else BAD, "certificate", "", sentence, one.name)


def _last_seen(series: Series) -> str:
    """How long ago the coordinator answered, as the end of a sentence."""
    if series.answered_at_s is None:
        return ""
    return f" Last seen {max(0.0, series.at_s - series.answered_at_s):.0f} s ago."


def _intake_findings(series: Series) -> Iterator[Finding]:
    """Requests of the last minute that were refused, or failed."""
    minute = series.state.last_minute
    if minute is None:
        return
    if minute.refused:
        severity = BAD if minute.refused >= REFUSED_BAD * minute.ended else WARNING
        of = f"{minute.refused} of the {minute.ended} requests that ended"
        sentence = f"{of} in the last minute were refused: more came than can be answered in time."
        yield Finding(severity, "refusals", "", sentence)
    if minute.failed:
        sentence = f"{minute.failed} of {minute.ended} requests failed in the last minute."
        yield Finding(WARNING, "failures", "", sentence)


def _key_findings(series: Series) -> Iterator[Finding]:
    """Keys that open nothing any more, and are still used."""
    told = {
        event.text: event
        for event in series.events
        if event.kind == "key_refused" and abs(series.now_unix_s - event.unix_s) <= KEY_REFUSED_S
    }
    for text in told:
        yield Finding(WARNING, "key_refused", "", f"{text[:1].upper()}{text[1:]}.", text)


def _loss_findings(series: Series) -> Iterator[Finding]:
    for node in series.state.nodes:
        lost_at_s = series.lost_at_s.get(node.id)
        if lost_at_s is not None and series.at_s - lost_at_s <= LOST_S:
            why = f": {node.reason}" if node.reason else "."
            ago = f"{max(0.0, series.at_s - lost_at_s):.0f} s ago"
            yield Finding(BAD, "node_lost", node.name, f"{node.name} was lost {ago}{why}")


def _stage_findings(series: Series) -> Iterator[Finding]:
    slow = {(one.ring, one.node): one for one in slow_stages(series)}
    for one in slow.values():
        sentence = (
            f"{one.node} is {one.times:.1f} times as slow as it was: a decode step takes "
            f"{1000 * one.step_s:.0f} ms instead of {1000 * one.usual_s:.0f}."
        )
        yield Finding(BAD, "slow", one.node, sentence, f"ring {one.ring}")
    for ring in series.state.rings:
        slowest = slowest_stage(series, ring)
        if slowest is not None and (ring.number, slowest.node) not in slow:
            sentence = (
                f"{slowest.node} sets the pace of ring {ring.number}: its steps take longest."
            )
            yield Finding(NOTE, "pace", slowest.node, sentence, f"ring {ring.number}")


def _links_findings(series: Series) -> Iterator[Finding]:
    for ring in series.state.rings:
        for link in ring.links:
            yield from _link_findings(series, link)


def _link_findings(series: Series, link: RingLink) -> Iterator[Finding]:
    name = f"The link {link.source} to {link.target}"
    if link.decode_wait_s >= DECODE_WAIT_S:
        sentence = f"{name} holds up decode: {link.decode_wait_s:.1f} s of it are queued."
        yield Finding(WARNING, "link_queue", link.source, sentence, link.target)
    elif (series.link_busy(link.ends) or 0.0) >= LINK_BUSY:
        yield Finding(NOTE, "link_full", link.source, f"{name} is full.", link.target)


def _node_findings(series: Series) -> Iterator[Finding]:
    for node in series.state.nodes:
        if node.state == "outdated":
            sentence = f"{node.name} is outdated: {node.reason}"
            yield Finding(WARNING, "outdated", node.name, sentence)
        if node.state in ("serving", "loading") and node.doubts:
            more = len(node.doubts) - 1
            ending = f" ({more} more in its details)" if more else ""
            sentence = f"{node.name}: {node.doubts[0]}{ending}"
            yield Finding(NOTE, "doubt", node.name, sentence)
