"""T_a as simulated links use it, held against what came; without a call it is wrong."""

from bisect import bisect_left, bisect_right
from statistics import median

import pytest

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.link.sender import LinkSender
from molink_sim.network.paced import PacedLink
from molink_sim.network.paper_queue import PaperQueue
from molink_sim.scenario import RequestArrival, Scenario
from molink_sim.simulate import World
from molink_sim.systems import system_named

MESSAGE_BYTES_MIN = 1000
"""Rows of decode are longer, words of the book shorter."""

STREAMS = [RequestArrival(0.0, 16, 120) for _ in range(4)]
PROMPTS = [RequestArrival(3.0 + 2.0 * number, 700, 2) for number in range(4)]

CALLS = {"cases 1 and 2": "set_decode_result_due", "case 3": "set_next_decode_due"}


class Watched:
    """What stages and links of a run said, by link; times rise."""

    def __init__(self, monkeypatch):
        self.decisions: list[tuple[int, float, float]] = []
        """(link, t_c, T_a) of prefill."""
        self.begun: dict[int, list[float]] = {}
        self.left: dict[int, list[float]] = {}
        next_chunk, offer = PaperQueue.next_chunk, LinkSender.offer
        told = PacedLink.set_decode_result_due

        def chunk(queue, now, link):
            found, due_at = next_chunk(queue, now, link), link.next_decode_due_at
            if found is not None and found.batch_class is PREFILL and due_at is not None:
                self.decisions.append((id(queue), now, due_at - now))
            return found

        def offered(sender, transfer, now):
            if transfer.batch_class is DECODE and transfer.size_bytes >= MESSAGE_BYTES_MIN:
                self.left.setdefault(id(sender.queue), []).append(now)
            offer(sender, transfer, now)

        def begins(link, due_at):
            self.begun.setdefault(id(link.sender.queue), []).append(link.clock.now)
            told(link, due_at)

        monkeypatch.setattr(PaperQueue, "next_chunk", chunk)
        monkeypatch.setattr(LinkSender, "offer", offered)
        monkeypatch.setattr(PacedLink, "set_decode_result_due", begins)

    def errors(self) -> dict[str, list[float]]:
        """|T_a - what came| in seconds, by case."""
        found: dict[str, list[float]] = {case: [] for case in CALLS}
        for link, now, allowed_s in self.decisions:
            left = self.left[link]
            if (following := bisect_right(left, now)) == len(left):
                continue
            came_at = left[following]
            begun = self.begun[link][bisect_left(self.begun[link], came_at) - 1]
            case = "cases 1 and 2" if begun <= now else "case 3"
            found[case].append(abs(now + allowed_s - came_at))
        return found


@pytest.fixture
def played(monkeypatch, plain_ring):
    """Runs streams and prompts over slow links, perhaps without one of the calls; errors of T_a."""

    def play(without: str | None = None):
        watched = Watched(monkeypatch)
        if without is not None:
            monkeypatch.setattr(LinkSender, CALLS[without], lambda sender, due_at: None)
        system = system_named("molink", policy="paper", micro_batches=1)
        ring = plain_ring(3, 20, 0.03, row_bytes=1536)
        arrivals = sorted([*STREAMS, *PROMPTS], key=lambda one: one.at_s)
        World(Scenario((ring,), arrivals, system, duration_s=12, drain_s=60)).run()
        return watched.errors()

    return play


def is_right(errors_s: list[float], allowed_s: float) -> bool:
    return len(errors_s) > 20 and median(errors_s) < 0.1 * allowed_s


STEP_S, ROUND_S = 0.0054, 0.11
"""A step of four rows, and about a round."""


def test_time_until_decode_is_right_in_all_cases(played):
    errors = played()
    assert is_right(errors["cases 1 and 2"], STEP_S)
    assert is_right(errors["case 3"], ROUND_S)


@pytest.mark.parametrize(("case", "allowed_s"), list(zip(CALLS, (STEP_S, ROUND_S), strict=True)))
def test_leaving_a_call_out_is_noticed(played, case, allowed_s):
    assert not is_right(played(without=case)[case], allowed_s)
