"""Recovery, or failover, of a ring that has lost stages: survivors stay, the hole is filled.

What is lost goes on on a standby that holds its layers, else it is loaded again on its own node if
that is still there, else on another one, else beside what a neighbour holds. Then all stages join
the ring's next epoch, in which survivors keep their process, weights and KV
(`molink_scheduler.resume`). When another stage is lost meanwhile, the same begins again. A ring
that cannot go on in time ends, and its requests go to the next one.

`recover` is a function from a state, an event and a time to the next state and what is to be done.
So the log of an outage (`recording.recovery_log`) replays to the same instructions. It has three
drivers: the coordinator, the simulator, and the property tests of whole rings.
"""

from dataclasses import replace
from typing import assert_never

from molink_scheduler.recovery.events import (
    Event,
    FillerFound,
    Loss,
    NeighbourFound,
    PartsLost,
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
    HoldPlaces,
    Instruction,
    JoinEpoch,
    ListRequests,
    LoadPlaces,
    Serve,
    TooSmall,
)
from molink_scheduler.recovery.joining import lacks, resume_requests, resumes
from molink_scheduler.recovery.searching import (
    is_in_vain,
    member_in,
    next_members,
    next_question,
    with_filler,
    with_neighbour,
)
from molink_scheduler.recovery.state import Phase, RingRecovery, Search

SILENT_LOST_S = 4.0
"""For which a stage may be silent until it is lost, where no standby holds its layers: a stall of a
home Wi-Fi is over in two to five seconds, and costs less than to go on without the PC."""

Step = tuple[RingRecovery, tuple[Instruction, ...]]
"""State that follows, and what is to be done, in this order."""

TOO_LATE = "It could not go on in time."
TOO_LITTLE = "Too little is left of it to go on."
NO_FILLER = "Nobody has room for what is lost, or not in time."


def recover(state: RingRecovery, event: Event, now: float) -> Step:
    """What follows from an event. `now`: seconds, of any clock that does not go back."""
    if state.phase is Phase.ENDED:
        return state, ()
    is_late = state.due_at is not None and now >= state.due_at
    if is_late and not isinstance(event, WentOn):  # Requests that flow are not stopped for it.
        return _given_up(state, TOO_LATE)
    match event:
        case StagesLost(losses, with_coordinator):
            return _lost(state, losses, now, replaced_min=int(not with_coordinator))
        case PartsLost():
            return _lost(state, (), now, replaced_min=0)
        case StageSilent():
            return _silent(state, event)
        case FillerFound() | NeighbourFound():
            return _answered(state, event, now)
        case PlaceLoaded() | RequestsListed() | PlaceReady():
            is_current = event.attempt == state.attempt and state.phase is not Phase.SEARCHING
            return _moved_on(state, event, now) if is_current else (state, ())
        case WentOn():
            return _went_on(state, now)
        case TimePassed():
            return state, ()
    assert_never(event)


def _lost(state: RingRecovery, losses: tuple[Loss, ...], now: float, *, replaced_min: int) -> Step:
    """Search for who fills the places; another loss meanwhile begins the same again."""
    known = state.search.losses if state.search is not None else ()
    lost = {loss.place: loss for loss in (*known, *losses)}
    if not replaced_min <= len(lost.keys() | state.fresh) < len(state.members):
        return _given_up(state, TOO_LITTLE)
    began_at = now if state.began_at is None else state.began_at
    search = Search(tuple(lost[place] for place in sorted(lost)))
    state = replace(state, phase=Phase.SEARCHING, began_at=began_at, search=search)
    return _searched_on(state, now)


def _silent(state: RingRecovery, event: StageSilent) -> Step:
    is_lost = event.has_standby or event.silent_s >= SILENT_LOST_S
    is_watched = state.phase in (Phase.SERVING, Phase.GOING_ON)
    return state, (CountAsLost(event.place),) if is_lost and is_watched else ()


def _answered(state: RingRecovery, event: FillerFound | NeighbourFound, now: float) -> Step:
    if state.phase is not Phase.SEARCHING:
        return state, ()
    if isinstance(event, FillerFound):
        return _searched_on(with_filler(state, event, now), now)
    found = with_neighbour(state, event)
    return _given_up(state, NO_FILLER) if found is None else _searched_on(found, now)


def _searched_on(state: RingRecovery, now: float) -> Step:
    question = next_question(state, now)
    if question is not None:
        return state, (question,)
    return _given_up(state, NO_FILLER) if is_in_vain(state) else _begun(state, now)


def _begun(state: RingRecovery, now: float) -> Step:
    """All places are filled: have survivors hold, and load the others."""
    assert state.search is not None, "it was searched for"
    lost = tuple(state.members[loss.place].node for loss in state.search.losses)
    taken, attempt = next_members(state), state.attempt + 1
    members = tuple(member_in(state, next_member) for next_member in taken)
    state = replace(state.with_losses(lost, now), members=members, attempt=attempt, search=None)
    loaded = state.places(lambda one: one.room is not None)
    survivors = loaded & state.places(lambda one: one.has_grown or not one.is_fresh)
    to_load = state.places(lambda one: one.room is None)
    begin = BeginEpoch(attempt, taken), HoldPlaces(tuple(sorted(survivors)))
    state = replace(state, phase=Phase.LOADING, listed=(), ready=())
    if to_load:
        return state, (*begin, LoadPlaces(tuple(sorted(to_load))))
    state, instructions = _all_loaded(state, now)
    return state, (*begin, *instructions)


def _moved_on(
    state: RingRecovery, event: PlaceLoaded | RequestsListed | PlaceReady, now: float
) -> Step:
    match event:
        case PlaceLoaded(_, place, room):
            loaded = state.members[place].with_room(room)
            members = (*state.members[:place], loaded, *state.members[place + 1 :])
            state = replace(state, members=members)
            is_last = all(one.room is not None for one in members)
            return _all_loaded(state, now) if is_last else (state, ())
        case RequestsListed(_, requests):
            state = replace(state, phase=Phase.JOINING, listed=requests)
            return state, (JoinEpoch(resumes(state, requests)),)
        case PlaceReady():
            state = replace(state, ready=(*state.ready, event))
            if len({one.place for one in state.ready}) < len(state.members):
                return state, ()
            return replace(state, phase=Phase.GOING_ON), (resume_requests(state, state.ready),)


def _all_loaded(state: RingRecovery, now: float) -> Step:
    """Have all join, unless one has too little room: then it is as good as lost."""
    short = [(place, lacks(one, state.room)) for place, one in enumerate(state.members)]
    blamed = tuple(TooSmall(place, what) for place, what in short if what)
    if not blamed:
        return replace(state, loaded_at=now), (ListRequests(),)
    losses = tuple(Loss(one.place, may_load_again=False) for one in blamed)
    state, instructions = _lost(state, losses, now, replaced_min=1)
    return state, (*blamed, *instructions)


def _went_on(state: RingRecovery, now: float) -> Step:
    if state.phase is not Phase.GOING_ON or state.began_at is None:
        return state, ()
    served = Serve(now - state.began_at, state.loaded_at - state.began_at)
    members = tuple(one.serving() for one in state.members)
    state = replace(state, phase=Phase.SERVING, began_at=None, members=members)
    return replace(state, listed=(), ready=()), (served,)


def _given_up(state: RingRecovery, why: str) -> Step:
    return replace(state, phase=Phase.ENDED), (EndRing(why),)
