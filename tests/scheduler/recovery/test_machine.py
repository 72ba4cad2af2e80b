"""What a ring does that loses stages, whatever happens in whichever order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.recording.recovery_log import RecoveryLog
from molink_scheduler.recovery.events import (
    FillerFound,
    Loss,
    NeighbourFound,
    PlaceLoaded,
    PlaceReady,
    RequestsListed,
    StageSilent,
    StagesLost,
    TimePassed,
    WentOn,
)
from molink_scheduler.recovery.instructions import (
    BeginEpoch,
    CountAsLost,
    EndRing,
    Extends,
    Fills,
    FindFiller,
    FindNeighbour,
    HoldPlaces,
    JoinEpoch,
    ListRequests,
    LoadPlaces,
    Reloads,
    ResumeRequests,
    Serve,
    Stays,
    TooSmall,
)
from molink_scheduler.recovery.machine import SILENT_LOST_S, recover
from molink_scheduler.recovery.members import Filler, Member, RingRoom, Room
from molink_scheduler.recovery.state import RECOVER_WITHIN_S, HeldBack, Phase, RingRecovery
from molink_sim.replay import replay

ROOM = Room(4096)


def a_ring(stages: int, room: Room = ROOM, **terms) -> RingRecovery:
    members = (Member(f"n{place}", (place, place + 1), room) for place in range(stages))
    return RingRecovery(RingRoom(4096, **terms), tuple(members))


def tell(state: RingRecovery, *events, now: float = 100.0):
    """The state after all events, and what the last of them led to."""
    told = ()
    for event in events:
        state, told = recover(state, event, now)
    return state, told


def lost(*places: int, may_load_again: bool = True) -> StagesLost:
    return StagesLost(tuple(Loss(place, may_load_again) for place in places))


def test_a_stage_is_loaded_again_where_it_was_and_all_join():
    state, (asked,) = tell(a_ring(3), lost(1))
    assert asked == FindFiller(1, (), (), RECOVER_WITHIN_S)
    state, (begin, hold, load) = tell(state, FillerFound(1))
    assert begin == BeginEpoch(1, (Stays(0), Reloads(1), Stays(2)))
    assert (hold, load) == (HoldPlaces((0, 2)), LoadPlaces((1,)))
    state, told = tell(state, PlaceLoaded(1, 1, ROOM), now=103.0)
    assert told == (ListRequests(),)
    state, (join,) = tell(state, RequestsListed(1, ((4, 7), (5, 30))))
    assert [one.fresh for one in join.resumes] == [False, True, False]
    assert [one.next_fresh for one in join.resumes] == [True, False, False]
    state, told = tell(state, PlaceReady(1, 0), PlaceReady(1, 1, missing=(5,)))
    assert told == ()
    state, told = tell(state, PlaceReady(1, 2))
    assert told == (ResumeRequests(frozenset({4, 5}), frozenset({5}), 37, None),)
    state, told = tell(state, WentOn(), now=105.0)
    assert told == (Serve(elapsed_s=5.0, loading_s=3.0),)
    assert state.phase is Phase.SERVING and not state.fresh


def test_a_standby_comes_before_the_node_itself_and_a_free_node_after_it():
    standby, free = Filler("s", ROOM, ((4, 5),)), Filler("f")
    state, _ = tell(a_ring(3), lost(1))
    found = FillerFound(1, standby, free)
    assert tell(state, found)[1][0].seats[1] == Fills(1, standby)
    state, _ = tell(a_ring(3), lost(1, may_load_again=False))
    assert tell(state, FillerFound(1, None, free))[1][0].seats[1] == Fills(1, Filler("f"))


def test_who_holds_all_already_is_asked_to_load_nothing():
    state, told = tell(a_ring(3), lost(1), FillerFound(1, Filler("s", ROOM, ((4, 5),))))
    assert told[1:] == (HoldPlaces((0, 2)), ListRequests())
    _, (join,) = tell(state, RequestsListed(1, ((4, 7),)))
    assert [one.held for one in join.resumes] == [None, ((4, 5),), None]
    assert [one.next_held for one in join.resumes] == [((4, 5),), None, None]


def test_one_node_fills_one_place():
    state, _ = tell(a_ring(4), lost(1, 2))
    _, (asked,) = tell(state, FillerFound(1, Filler("s", ROOM)))
    assert asked.taken == ("s",)


def test_the_neighbour_before_a_hole_takes_its_layers_else_the_one_behind():
    state, _ = tell(a_ring(4), lost(1, 2, may_load_again=False))
    state, (asked,) = tell(state, FillerFound(1), FillerFound(2))
    assert asked == FindNeighbour((1, 3), (0, 3), RECOVER_WITHIN_S)
    before, told = tell(state, NeighbourFound(0))
    assert told[0].seats == (Extends(0, (0, 3)), Stays(3)) and told[2] == LoadPlaces((0,))
    assert told[1] == HoldPlaces((1,)), "places are those of the new epoch"
    assert before.fresh == frozenset()
    behind, told = tell(state, NeighbourFound(3))
    assert told[0].seats == (Stays(0), Extends(3, (1, 4)))
    assert behind.fresh == {1}, "who is behind the hole is fed"
    assert tell(state, NeighbourFound(None))[1] == (
        EndRing("Nobody has room for what is lost, or not in time."),
    )


def test_a_ring_without_any_stage_that_stays_ends():
    assert isinstance(tell(a_ring(2), lost(0, 1))[1][0], EndRing)
    assert isinstance(tell(a_ring(1), lost(0))[1][0], EndRing)


def test_what_has_lost_nothing_goes_on_only_under_another_coordinator():
    assert isinstance(tell(a_ring(3), StagesLost())[1][0], EndRing)
    _, told = tell(a_ring(3), StagesLost(with_coordinator=True))
    assert told == (
        BeginEpoch(1, (Stays(0), Stays(1), Stays(2))),
        HoldPlaces((0, 1, 2)),
        ListRequests(),
    )


def test_a_way_that_failed_with_nothing_more_lost_is_tried_again():
    state, _ = tell(a_ring(3), lost(1), FillerFound(1), PlaceLoaded(1, 1, ROOM))
    _, told = tell(state, StagesLost())
    assert told[0] == BeginEpoch(2, (Stays(0), Stays(1), Stays(2)))
    assert told[1:] == (HoldPlaces((0, 2)), ListRequests()), "the fresh one has nothing to keep"


def test_another_loss_meanwhile_begins_the_same_again_and_old_answers_are_void():
    state, _ = tell(a_ring(3), lost(1), FillerFound(1))
    state, (asked,) = tell(state, lost(2))
    assert asked.place == 2
    state, told = tell(state, FillerFound(2))
    assert told[0].attempt == 2 and told[2] == LoadPlaces((1, 2))
    assert tell(state, PlaceLoaded(1, 1, ROOM), PlaceLoaded(1, 2, ROOM)) == (state, ())
    assert tell(state, PlaceLoaded(2, 1, ROOM), PlaceLoaded(2, 2, ROOM))[1] == (ListRequests(),)


def test_a_loss_while_fillers_are_sought_is_sought_for_too():
    state, (asked,) = tell(a_ring(4), lost(1), lost(3))
    assert asked.place == 1
    _, told = tell(state, FillerFound(1), FillerFound(3))
    assert told[0].seats == (Stays(0), Reloads(1), Stays(2), Reloads(3))


def test_a_node_that_loses_its_stage_again_is_held_back():
    events = (lost(1), FillerFound(1), PlaceLoaded(1, 1, ROOM), RequestsListed(1, ()))
    state, _ = tell(a_ring(3), *events, *(PlaceReady(1, place) for place in range(3)), WentOn())
    _, (asked,) = tell(state, lost(1), now=159.0)
    assert asked.held_back == ("n1",)
    soon, told = tell(state, lost(1), FillerFound(1, None, Filler("f")), now=159.0)
    assert told[0].seats[1] == Fills(1, Filler("f"))
    later, told = tell(state, lost(1), FillerFound(1, None, Filler("f")), now=161.0)
    assert told[0].seats[1] == Reloads(1)
    assert soon.held_back != later.held_back


def test_a_node_is_held_back_ever_longer():
    held_back, waits = HeldBack("n", 0, 0.0), []
    for _ in range(7):
        held_back = held_back.once_more(1e4)
        waits.append(held_back.until - 1e4)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600]


@pytest.mark.parametrize("event", [PlaceLoaded(1, 1, ROOM), TimePassed(), StagesLost((Loss(2),))])
def test_a_ring_that_does_not_go_on_in_time_ends(event):
    state, _ = tell(a_ring(3), lost(1), FillerFound(1))
    state, told = tell(state, event, now=100.0 + RECOVER_WITHIN_S)
    assert told == (EndRing("It could not go on in time."),)
    assert tell(state, event, WentOn(), TimePassed()) == (state, ()), "it has ended"


def test_a_ring_whose_requests_flow_again_at_the_last_moment_serves_and_can_recover_again():
    state, _ = tell(a_ring(3), lost(1), FillerFound(1), PlaceLoaded(1, 1, ROOM))
    state, _ = tell(state, RequestsListed(1, ()), *(PlaceReady(1, place) for place in range(3)))
    state, told = tell(state, WentOn(), now=100.0 + RECOVER_WITHIN_S)
    assert told == (Serve(RECOVER_WITHIN_S, 0.0),) and state.phase is Phase.SERVING
    assert tell(state, lost(2), now=200.0)[1][0].place == 2


@pytest.mark.parametrize(
    "ring, room, lacks",
    [({}, Room(4095), "tokens"), ({"state_slots": 4}, Room(4096, state_slots=3), "states")],
)
def test_a_stage_with_too_little_room_is_as_good_as_lost(ring, room, lacks):
    state, _ = tell(a_ring(3, **ring), lost(1), FillerFound(1))
    state, told = tell(state, PlaceLoaded(1, 1, room))
    assert told == (TooSmall(1, lacks), FindFiller(1, (), ("n1",), RECOVER_WITHIN_S))
    _, told = tell(state, FillerFound(1, None, Filler("f")))
    assert told[0].seats[1] == Fills(1, Filler("f"))


@pytest.mark.parametrize("has_standby, silent_s", [(True, 0.6), (False, SILENT_LOST_S)])
def test_a_silent_stage_counts_as_lost(has_standby, silent_s):
    state = a_ring(3)
    assert tell(state, StageSilent(1, silent_s, has_standby)) == (state, (CountAsLost(1),))


def test_a_silent_stage_without_a_standby_is_waited_for():
    state = a_ring(3)
    assert tell(state, StageSilent(1, SILENT_LOST_S - 0.1, False)) == (state, ())
    state, _ = tell(state, lost(1))
    assert tell(state, StageSilent(2, 10.0, True)) == (state, ()), "its ring stands still"


@pytest.mark.parametrize("place, stays", [(1, True), (0, False)])
def test_cached_blocks_stay_where_the_head_knows_them(place, stays):
    room = Room(4096)
    state = a_ring(3, room, prefix_cache=True)
    loaded = lost(place), FillerFound(place), PlaceLoaded(1, place, room)
    _, (join,) = tell(state, *loaded, RequestsListed(1, ()))
    assert {one.chains_stay for one in join.resumes} == {stays}


class Outage:
    """Drives a ring by what a test draws, and looks at all that it decides."""

    def __init__(self, draw, stages: int) -> None:
        self.draw, self.now = draw, 0.0
        self.first = self.state = a_ring(stages, prefix_cache=draw(st.booleans()))
        self.lines: list[str] = []
        self.log = RecoveryLog(self.lines.append)
        self.loading: list[int] = []
        self.joining: list[int] = []

    def tell(self, event) -> None:
        before = self.state
        self.now += self.draw(st.sampled_from([0.0, 0.5, 20.0]))
        self.state, told = recover(before, event, self.now)
        self.log.note(before, event, self.now, told)
        for one in told:
            self.obey(one)

    def obey(self, told) -> None:
        match told:
            case FindFiller(place, taken):
                used = {*taken, *(one.node for one in self.state.members)}
                free = [name for name in "stuvwxyz" if name not in used]
                names = st.none() | st.sampled_from(free)
                standby, other = self.draw(names), self.draw(names)
                room = self.draw(st.sampled_from([None, ROOM]))
                self.tell(
                    FillerFound(
                        place,
                        standby and Filler(standby, room),
                        other and Filler(other),
                    )
                )
            case FindNeighbour(_, able):
                self.tell(NeighbourFound(self.draw(st.none() | st.sampled_from(able))))
            case BeginEpoch():
                self.loading, self.joining = [], []
                self.check_members()
            case LoadPlaces(places):
                self.loading = list(places)
            case ListRequests():
                self.tell(RequestsListed(self.state.attempt, ((4, 7), (5, 30))))
            case JoinEpoch(resumes):
                assert len(resumes) == len(self.state.members)
                assert all(one.next_fresh == two.fresh for one, two in pairwise(resumes))
                self.joining = list(range(len(resumes)))
            case ResumeRequests():
                self.tell(WentOn())

    def check_members(self) -> None:
        members, whole = self.state.members, self.first.members[-1].layers[1]
        assert members[0].layers[0] == 0 and members[-1].layers[1] == whole
        assert all(one.layers[1] == two.layers[0] for one, two in pairwise(members))
        assert len({one.node for one in members}) == len(members)
        assert any(one.has_grown or not one.is_fresh for one in members)

    def happen(self) -> None:
        kinds = [
            "lost",
            *(["loaded"] * 3 if self.loading else []),
            *(["ready"] * 3 if self.joining else []),
        ]
        match self.draw(st.sampled_from(kinds)):
            case "loaded":
                place = self.loading.pop()
                self.tell(PlaceLoaded(self.state.attempt, place, ROOM))
            case "ready":
                place = self.joining.pop()
                self.tell(PlaceReady(self.state.attempt, place, cached=((0, 4),)))
            case _:
                places = st.integers(0, len(self.state.members) - 1)
                losses = self.draw(st.lists(places, min_size=1, max_size=2, unique=True))
                self.tell(StagesLost(tuple(Loss(one, self.draw(st.booleans())) for one in losses)))


@given(st.data())
def test_whatever_happens_no_layer_is_lost_and_the_log_replays_to_the_same(data):
    outage = Outage(data.draw, data.draw(st.integers(2, 5)))
    for _ in range(data.draw(st.integers(1, 15))):
        outage.happen()
    assert outage.state.phase in (Phase.ENDED, Phase.SERVING) or outage.loading or outage.joining
    found = replay(outage.lines)
    assert found.difference is None and found.calls_count == len(outage.lines) - 1
