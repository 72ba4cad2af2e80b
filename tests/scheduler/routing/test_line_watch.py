"""Who is starved is found whatever else is served, and no honest head is accused."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.prompt_order import PromptOrder
from molink_scheduler.routing.line_watch import (
    STARVED_AFTER_S,
    STARVED_MAX,
    STARVED_WITHIN_S,
    LineWatch,
    Waiting,
)

WITHIN_S = 60.0
"""Users get an answer or an error by then."""


@dataclass
class Asked:
    """Request on a simulated ring."""

    request_id: int
    place: int
    cached: int
    tokens: int
    answer: int
    came_at: float
    computed: int = 0
    begun: bool = False

    @property
    def held(self):
        return self.tokens + self.answer


@dataclass
class SimulatedHead:
    """Head that computes prompts in their order, as far as there is room, and lets every n-th
    lie: as if it were not there."""

    rows_per_s: int
    room: int
    lies_to: int = 0
    watch: LineWatch = field(default_factory=LineWatch)
    order: PromptOrder = field(default_factory=PromptOrder)
    waiting: list = field(default_factory=list)
    running: list = field(default_factory=list)
    rows: int = 0
    found: dict = field(default_factory=dict)
    """When each that starves was found, from when it came."""
    came: int = 0

    def ask(self, tokens, answer, cached, now):
        self.came += 1
        cached = min(cached, tokens - 1)
        place = self.order.join(tokens - cached)
        self.waiting.append(Asked(self.came, place, cached, tokens, answer, now))

    def lets_lie(self, one):
        return self.lies_to and one.request_id % self.lies_to == 0

    def second(self, now):
        """Compute for a second, then have a look."""
        self.rows_left = self.rows_per_s
        for one in [one for one in self.running if one.begun]:
            one.answer -= 1
        self.running = [one for one in self.running if one.answer > 0]
        while self.rows_left and (one := self.first()) is not None:
            step = min(self.rows_left, one.tokens - one.cached - one.computed)
            one.computed, self.rows_left, self.rows = (
                one.computed + step,
                self.rows_left - step,
                self.rows + step,
            )
            if one.computed < one.tokens - one.cached:
                break
            one.begun = True
            self.waiting.remove(one)
            self.watch.began(one.request_id, (0, one.place))
        self.look(now)

    def first(self):
        """The prompt under way, else the first in the line if there is room for it."""
        for one in self.running:
            if not one.begun:
                return one
        line = sorted(
            (one for one in self.waiting if not self.lets_lie(one)), key=lambda one: one.place
        )
        if not line or sum(one.held for one in (*self.running, line[0])) > self.room:
            return None
        self.running.append(line[0])
        return line[0]

    def look(self, now):
        waiting = [
            Waiting(one.request_id, (0, one.place + 10 * one.cached), STARVED_AFTER_S)
            for one in self.waiting
        ]
        live = {one.request_id: one for one in (*self.waiting, *self.running)}
        has_room = sum(one.held for one in live.values()) <= self.room
        for starved in self.watch.look(waiting, self.rows, now, has_room=has_room):
            (one,) = [one for one in self.waiting if one.request_id == starved]
            self.waiting.remove(one)
            self.found[one.request_id] = now - one.came_at


requests = st.lists(
    st.tuples(
        st.integers(0, 12),  # Seconds until it comes.
        st.integers(1, 900),
        st.integers(1, 90),
        st.integers(0, 500),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(requests, st.integers(5, 400), st.integers(1000, 6000))
def test_no_honest_head_is_accused_however_slow_it_is(asked, rows_per_s, room):
    head, now = SimulatedHead(rows_per_s, room), 0.0
    for pause, *what in asked:
        for _ in range(pause):
            now += 1.0
            head.second(now)
        head.ask(*what, now)
    for _ in range(600):
        now += 1.0
        head.second(now)
    assert not head.found and not head.watch.starved_count


def test_a_head_that_lets_one_in_three_lie_is_found_by_each_of_them_in_a_minute():
    head, now = SimulatedHead(200, 10**6, lies_to=3), 0.0
    for second in range(300):
        now = float(second)
        if second % 4 == 0 and second < 200:
            head.ask(100, 20, 0, now)
        head.second(now)
        if head.watch.is_habit(now):
            break
    assert len(head.found) == STARVED_MAX and all(one % 3 == 0 for one in head.found)
    assert max(head.found.values()) <= WITHIN_S


def test_who_waits_beside_one_long_answer_is_found():
    """Tokens come each second, nobody else asks, and there is room."""
    head = SimulatedHead(200, 10**6, lies_to=2)
    head.ask(100, 10_000, 0, 0.0)
    head.ask(100, 20, 0, 0.0)
    for second in range(1, int(WITHIN_S)):
        head.second(float(second))
    assert set(head.found) == {2}


def test_who_waits_for_room_is_not_lying_until_somebody_passes():
    head = SimulatedHead(200, 10_200)
    head.ask(100, 10_000, 0, 0.0)
    head.ask(200, 600, 0, 0.0)
    for second in range(1, 300):
        head.second(float(second))
        if second == 250:
            head.watch.began(8, (0, 10**6))
    assert not head.found, "once may be a fetch from below"
    head.watch.began(9, (0, 10**6))
    head.second(301.0)
    assert set(head.found) == {2}


@pytest.mark.parametrize(
    ("heard_each", "is_found"), [(1, True), (3, True), (10, False), (10**6, False)]
)
def test_without_news_of_the_tail_nobody_lies(heard_each, is_found):
    """The broker is away: prompts may go round all the same. A report may be late."""
    watch, waiting = LineWatch(), [Waiting(1, (0, 10), STARVED_AFTER_S)]
    rows = [-7 if second % heard_each == 0 else None for second in range(1, 60)]
    found = [watch.look(waiting, one, 1.0 + at, has_room=True) for at, one in enumerate(rows)]
    assert any(found) == is_found


def test_a_few_in_a_day_are_chance():
    watch, now = LineWatch(), 0.0
    for _ in range(3 * STARVED_MAX):
        assert not watch.is_habit(now)
        while not watch.look([Waiting(1, (0, 10), 1.0)], 0, now, has_room=True):
            now += 1.0
        now += STARVED_WITHIN_S / (STARVED_MAX - 1)
