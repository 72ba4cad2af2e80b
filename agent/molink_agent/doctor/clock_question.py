"""How is this PC's time? A coordinator tells its own with each answer (Date, whole seconds)."""

import asyncio
import contextlib
import http.client
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from molink_agent.doctor.facts import ClockFacts
from molink_agent.probe.clock import ClockReading
from molink_agent.probe.commands import Ask, answer_of

__all__ = ["clock_facts", "read_date"]

ANSWER_WITHIN_S = 5.0
"""A coordinator that is busy still answers in one; a doctor should not keep people waiting."""


async def clock_facts(coordinator_url: str, ask: Ask = answer_of) -> ClockFacts:
    """Against the coordinator's, where one is known; and what the system says of itself."""
    said = await ask("timedatectl", "show", "--property=NTPSynchronized", "--value")
    known = {"yes": True, "no": False}.get((said or "").strip())
    if not coordinator_url:
        return ClockFacts(synchronized=known)
    return ClockFacts(await asyncio.to_thread(_offset_s, coordinator_url), known)


def read_date(sent_unix_s: float, round_trip_s: float, header: str | None) -> float | None:
    """The offset by a Date header; None when it is none."""
    try:
        told = parsedate_to_datetime(header or "")
    except ValueError:
        return None
    return ClockReading(sent_unix_s, round_trip_s, told.timestamp()).offset_s


def _offset_s(coordinator_url: str) -> float | None:
    try:
        url = urlsplit(coordinator_url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=ANSWER_WITHIN_S)
    except ValueError:
        return None
    with contextlib.closing(connection):
        try:
            sent_s, started_s = time.time(), time.monotonic()
            connection.request("HEAD", "/")
            header = connection.getresponse().getheader("Date")
            return read_date(sent_s, time.monotonic() - started_s, header)
        except (OSError, http.client.HTTPException):
            return None
