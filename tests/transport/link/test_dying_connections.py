"""Real sockets through a proxy that freezes or forgets connections: nothing is lost or doubled."""

import threading
import time

import pytest

from molink.transport import curve
from molink.transport.link import connections
from molink_scheduler.batch import BatchClass
from molink_scheduler.link import silence as link_silence
from molink_scheduler.link.silence import GiveUp
from tests.transport.link.bad_proxy import BadProxy
from tests.transport.link.two_ends import RECEIVER, SENDER, TwoEnds, public

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL
BULK_BYTES = 100_000
PROGRESS_WITHIN_S = 20.0
FROZEN_S = 0.6
"""Twice the heartbeats' patience here, and three times a link's."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A tenth of all waits, on loopback."""
    for name in ("SILENT_S_MIN", "SILENT_S_MAX", "RECONNECT_S"):
        monkeypatch.setattr(link_silence, name, getattr(link_silence, name) / 10)
    monkeypatch.setattr(curve, "HEARTBEAT_MS", 100)
    monkeypatch.setattr(curve, "HEARTBEAT_TIMEOUT_MS", 300)


class Stream:
    """Small messages of decode between large ones of prefill, for as long as it is open."""

    def __init__(self, ends: TwoEnds, link) -> None:
        self.ends, self.link = ends, link
        self.counts = {DECODE: 0, PREFILL: 0}
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Stream":
        self.thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.done.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.done.wait(0.005):
            for batch_class, size in ((DECODE, 500), (PREFILL, BULK_BYTES)):
                if self.link.transfers_waiting < 20:
                    head = b"%d %d " % (batch_class, self.counts[batch_class])
                    self.counts[batch_class] += 1
                    self.ends.send(self.link, batch_class, head.ljust(size, b"."))

    def all_arrived_once_and_in_order(self) -> bool:
        arrived: dict[int, list[int]] = {DECODE: [], PREFILL: []}
        for _ in range(sum(self.counts.values())):
            batch_class, number = map(int, self.ends.next_message()[1].split()[:2])
            arrived[batch_class].append(number)
        expected = {which: list(range(count)) for which, count in self.counts.items()}
        return arrived == expected and self.ends.inbox.empty() and min(self.counts.values()) > 0


def through(proxy: BadProxy, ends: TwoEnds, encrypted: bool):
    """A link that leads through the proxy."""
    link = ends.opened(public(RECEIVER) if encrypted else None)
    ends.move(link, proxy.address)
    assert ends.moved().moved
    return link


def two_ends(encrypted: bool) -> TwoEnds:
    return TwoEnds.encrypted(public(SENDER)) if encrypted else TwoEnds()


def heard_of(link) -> int:
    """Number of the first chunk that is not acknowledged, or the next one."""
    return link.sender.oldest or link.sender._next_sequence


def wait_for_progress(link) -> None:
    """Until something that was sent from now on is acknowledged."""
    sent, deadline = link.sender._next_sequence, time.monotonic() + PROGRESS_WITHIN_S
    while heard_of(link) <= sent:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_network_that_freezes_loses_nothing(encrypted):
    """For longer than the heartbeats wait, which then close an encrypted connection."""
    with two_ends(encrypted) as ends, BadProxy(ends.inbound.port) as proxy:
        link = through(proxy, ends, encrypted)
        with Stream(ends, link) as stream:
            for frozen_s in (0.05, FROZEN_S):
                wait_for_progress(link)
                proxy.frozen = True
                time.sleep(frozen_s)
                proxy.frozen = False
            wait_for_progress(link)
        assert stream.all_arrived_once_and_in_order()
        assert ends.inbound.reassembly.chunks_refused == ends.inbound.frames_refused == 0


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_router_that_forgets_connections_loses_nothing(encrypted):
    with two_ends(encrypted) as ends, BadProxy(ends.inbound.port) as proxy:
        link = through(proxy, ends, encrypted)
        with Stream(ends, link) as stream:
            for _ in range(2):
                wait_for_progress(link)
                proxy.forget()
            wait_for_progress(link)
        assert stream.all_arrived_once_and_in_order()
        assert link.address == proxy.address


def test_where_a_way_stays_dead_another_one_is_asked_for_and_taken():
    with TwoEnds() as ends, BadProxy(ends.inbound.port) as proxy:
        link = through(proxy, ends, encrypted=False)
        asked = threading.Event()

        def ask(link, step) -> None:
            if step.ask_for_path and not asked.is_set():
                asked.set()
                link.move_to(ends.address, ends.outcomes.put)

        link.on_silence = ask
        with Stream(ends, link) as stream:
            wait_for_progress(link)
            proxy.refusing = True
            proxy.forget()
            assert ends.moved().moved
            wait_for_progress(link)
        assert stream.all_arrived_once_and_in_order()
        assert link.address == ends.address


def test_without_any_way_the_link_is_given_up(monkeypatch):
    monkeypatch.setattr(connections, "HANDSHAKE_SILENT_S", 0.3)
    with TwoEnds() as ends, BadProxy(ends.inbound.port) as proxy:
        link = through(proxy, ends, encrypted=False)
        link.sender.silence.lost_s = 0.5
        given_up = threading.Event()
        link.on_silence = lambda link, step: isinstance(step, GiveUp) and given_up.set()
        proxy.refusing = True
        proxy.forget()
        ends.send(link, DECODE, b"into the void")
        assert given_up.wait(10)
        assert ends.inbox.empty()
