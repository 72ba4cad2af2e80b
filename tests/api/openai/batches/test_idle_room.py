"""How many sequences of batches run beside what users have asked for, in virtual time."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.api.openai.batches.idle_room import (
    BEGINNING_MAX,
    BEGINNING_TOKENS,
    DISTURBED,
    GAPS_KNOWN,
    KV_SHARE,
    LINES_MAX,
    QUEUED_S,
    QUIET_S,
    IdleRoom,
    RoomOfRing,
    Seen,
)

LOOK_S = 0.02


@dataclass
class Ring:
    """A ring of which a gap is `gap_s(sequences)`, and that computes a prompt in PROMPT_S, during
    which gaps are three times as long."""

    gap_s: object
    prompt_s: float = 0.2
    room: RoomOfRing = field(default_factory=RoomOfRing)
    now: float = 100.0
    others: list[Seen] = field(default_factory=list)
    own: list[Seen] = field(default_factory=list)
    begun_at: dict[int, float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    """Of others."""
    own_tokens: int = 0
    keys: int = 0

    def comes(self, *, waits: bool = False) -> None:
        self.keys += 1
        self.others.append(Seen(self.keys, 1, None if waits else self.now, queued=waits))

    def begins(self) -> None:
        self.keys += 1
        self.begun_at[self.keys] = self.now
        self.own.append(Seen(self.keys, 0, None))

    def plays(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            begins = any(one.last_token_at is None for one in self.own)
            sequences = len(self.others) + len(self.own)
            gap_s = self.gap_s(sequences) * (3 if begins else 1)
            self.others = [self._decoded(one, gap_s, is_other=True) for one in self.others]
            self.own = [self._decoded(one, gap_s, is_other=False) for one in self.own]
            self.room.look(self.now, self.others, self.own)
            del self.own[self.room.allowed(self.now) :]
            if self.room.may_begin(self.now):
                self.begins()

    def _decoded(self, one: Seen, gap_s: float, *, is_other: bool) -> Seen:
        if one.last_token_at is None:
            if is_other or self.now - self.begun_at[one.key] < self.prompt_s:
                return one
            return replace_seen(one, tokens=1, last_token_at=self.now)
        if self.now - one.last_token_at < gap_s:
            return one
        if is_other:
            self.gaps.append(self.now - one.last_token_at)
        else:
            self.own_tokens += 1
        return replace_seen(one, tokens=one.tokens + 1, last_token_at=self.now)


def replace_seen(one: Seen, **fields) -> Seen:
    return one._replace(**fields)


def test_a_ring_that_nobody_uses_is_filled():
    ring = Ring(lambda n: 0.06)
    ring.plays(10.0)
    assert len(ring.own) == LINES_MAX


def test_only_few_have_their_prompt_computed_at_a_time():
    ring = Ring(lambda n: 0.06, prompt_s=1e9)
    ring.plays(3.0)
    assert len(ring.own) == BEGINNING_MAX


@pytest.mark.parametrize(
    ("under_way", "needs", "begins"),
    [
        ([], 5000, True),
        ([200], BEGINNING_TOKENS - 200, True),
        ([200], BEGINNING_TOKENS - 199, False),
        ([400, 400], 225, False),
        ([5000], 1, False),
    ],
)
def test_prompts_under_way_together_are_short(under_way, needs, begins):
    """One long prompt at a time, however long, or several that take no longer than a short one."""
    room = RoomOfRing()
    own = [Seen(n, 0, None, kv_tokens=tokens) for n, tokens in enumerate(under_way)]
    room.look(10.0, [], own)
    assert room.may_begin(10.0, needs) == begins


def test_who_slows_others_makes_room_for_them():
    """Each sequence adds a fifth: beside others nothing of ours goes on, whoever is there."""
    ring = Ring(lambda n: 0.2 * (1 + 0.2 * n))
    ring.plays(20.0)
    assert ring.own
    ring.comes()
    ring.plays(2 * LOOK_S)
    assert not ring.own
    ring.plays(60.0)
    alone_s = ring.gap_s(1) + LOOK_S
    assert sorted(ring.gaps)[int(0.99 * len(ring.gaps))] <= 1.05 * alone_s


def test_who_costs_others_nothing_goes_on_beside_them():
    ring = Ring(lambda n: 0.1)
    for _ in range(4):
        ring.comes()
    ring.plays(600.0)
    assert len(ring.own) > 3
    disturbed = sum(gap > 0.15 for gap in ring.gaps)
    assert 0 < disturbed <= DISTURBED * len(ring.gaps) + 50
    assert sorted(ring.gaps)[int(0.99 * len(ring.gaps))] <= 0.1 + 2 * LOOK_S


def test_nothing_begins_while_another_waits_and_a_line_of_them_gets_all_room():
    ring = Ring(lambda n: 0.1)
    ring.plays(10.0)
    ring.room._gaps = {n: replace(ring.room._gaps[LINES_MAX]) for n in range(1, 70)}
    ring.comes(waits=True)
    ring.plays(QUEUED_S - 2 * LOOK_S)
    assert ring.own and not ring.room.may_begin(ring.now)
    ring.plays(4 * LOOK_S)
    assert not ring.own
    ring.others.clear()
    ring.plays(QUIET_S - LOOK_S)
    assert not ring.own
    ring.plays(1.0)
    assert ring.own


def test_gaps_that_grow_take_room_back():
    ring = Ring(lambda n: 0.1)
    ring.comes()
    ring.plays(300.0)
    assert ring.own
    ring.gap_s = lambda n: 0.1 if n == 1 else 0.16
    ring.plays(30.0)
    assert not ring.own


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.booleans()), max_size=6),
            st.integers(0, 40),
            st.floats(0.0, 2.0),
        ),
        max_size=30,
    )
)
def test_whatever_is_seen_the_number_is_bounded(looks):
    room, now = RoomOfRing(), 0.0
    for others, own, seconds in looks:
        now += seconds
        seen = [Seen(key, tokens, now if waits else None, waits) for key, tokens, waits in others]
        room.look(now, seen, [Seen(100 + one, 1, now) for one in range(own)])
        assert 0 <= room.allowed(now) <= LINES_MAX
        if room.may_begin(now):
            assert own < room.allowed(now)
            assert all(one.last_token_at is not None for one in seen)


def test_a_number_that_was_never_measured_is_tried_by_one():
    room = RoomOfRing()
    for at in range(GAPS_KNOWN + 2):
        room.look(0.1 * at, [Seen(1, at, 0.1 * at)], [])
    assert room.allowed(9.9) == 1


@dataclass
class Rings:
    """Rings behind one service, of which each sequence makes gaps of its own ring a fifth longer.
    A newcomer of ours goes to the ring with the fewest of those that it does not avoid."""

    count: int = 2
    prompt_s: float = 0.2
    room: IdleRoom = field(default_factory=IdleRoom)
    now: float = 100.0
    others: list[Seen] = field(default_factory=list)
    own: list[Seen] = field(default_factory=list)
    begun_at: dict[int, float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    own_tokens: int = 0
    keys: int = 0

    def comes(self, ring: int) -> None:
        self.keys += 1
        self.others.append(Seen(self.keys, 1, self.now, ring=ring))

    def on(self, ring: int) -> int:
        return sum(one.ring == ring for one in (*self.others, *self.own))

    def plays(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            self.others = [self._decoded(one, is_other=True) for one in self.others]
            self.own = [self._decoded(one, is_other=False) for one in self.own]
            self.room.look(self.now, self.others, self.own)
            aside = self.room.aside(self.now, self.own)
            self.own = [one for one in self.own if one.key not in aside]
            avoided = self.room.avoided(self.now, 100)
            if avoided is not None and len(self.own) < LINES_MAX:
                self._begins(avoided)

    def _begins(self, avoided: frozenset[int]) -> None:
        rings = [*range(1, self.count + 1)]
        ring = min((one for one in rings if one not in avoided), default=rings[0], key=self.on)
        self.keys += 1
        self.begun_at[self.keys] = self.now
        self.own.append(Seen(self.keys, 0, None, ring=ring, kv_tokens=100))

    def _decoded(self, one: Seen, *, is_other: bool) -> Seen:
        if one.last_token_at is None:
            if self.now - self.begun_at[one.key] < self.prompt_s:
                return one
            return one._replace(tokens=1, last_token_at=self.now)
        begins = any(two.last_token_at is None for two in self.own if two.ring == one.ring)
        gap_s = 0.2 * (1 + 0.2 * self.on(one.ring)) * (3 if begins else 1)
        if self.now - one.last_token_at < gap_s:
            return one
        if is_other:
            self.gaps.append(self.now - one.last_token_at)
        else:
            self.own_tokens += 1
        return one._replace(tokens=one.tokens + 1, last_token_at=self.now)


def test_a_ring_that_nobody_uses_is_filled_while_users_are_on_another():
    rings = Rings()
    rings.plays(10.0)
    assert rings.on(1) and rings.on(2), "nobody else is there"
    rings.comes(1)
    rings.plays(10.0)
    assert rings.on(1) == 1, "each of ours would make the user's gaps longer"
    assert rings.on(2) == LINES_MAX
    rings.gaps.clear()
    rings.plays(15.0)
    assert max(rings.gaps) <= 0.2 * 1.2 + 2 * LOOK_S


def test_a_ring_that_is_gone_is_forgotten_and_the_last_one_counts():
    room, now = IdleRoom(), 100.0
    user = Seen(1, 5, now, ring=1)
    room.look(now, [user], [Seen(2, 5, now, ring=2)])
    assert room.avoided(now, 100) == {1}, "of a user's gaps nothing is known yet"
    room.know({1: 10_000})
    room.look(now, [user], [])
    assert room.avoided(now, 100) is None


def test_part_of_the_kv_is_left_to_whoever_comes():
    rings = Rings(count=1)
    rings.room.know({1: 2_000})
    rings.plays(8.0)
    assert rings.on(1) == KV_SHARE * 2_000 / 100
    rings.own.clear()
    rings.plays(LOOK_S)
    assert rings.on(1), "what needs more than that begins where nobody is"


def test_a_sequence_on_no_ring_yet_holds_back_what_would_begin_on_each():
    room, now = IdleRoom(), 100.0
    on = [Seen(1, 5, now, ring=1), Seen(2, 5, now, ring=2)]
    room.look(now, [], on)
    assert room.avoided(now, 1) == frozenset()
    room.look(now, [Seen(3, 0, None, queued=True)], on)
    assert room.avoided(now, 1) is None and not room.aside(now, [])
