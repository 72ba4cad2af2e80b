"""Search for who fills the places of lost stages: a standby that has the layers, else the node that
has lost them, else a free one, else a neighbour beside its own."""

from collections.abc import Iterator
from dataclasses import replace

from molink_scheduler.recovery.events import FillerFound, Loss, NeighbourFound
from molink_scheduler.recovery.holes import Hole, both, holes
from molink_scheduler.recovery.instructions import (
    Extends,
    Fills,
    FindFiller,
    FindNeighbour,
    NextMember,
    Reloads,
    Stays,
)
from molink_scheduler.recovery.members import Member
from molink_scheduler.recovery.state import RingRecovery, Search


def next_question(state: RingRecovery, now: float) -> FindFiller | FindNeighbour | None:
    """What the search asks next; None: all is answered, or a hole has no neighbour that may take
    it (`is_in_vain`)."""
    search, within_s = _search(state), state.left_s(now)
    if len(search.fillings) < len(search.losses):
        loss = search.losses[len(search.fillings)]
        taken = tuple(sorted(_nodes(state, search)))
        return FindFiller(loss.place, taken, state.not_yet(now), within_s)
    hole = _open_hole(search)
    able = () if hole is None else hole.able(state.members, _taken(state, search))
    if hole is None or not able:
        return None
    return FindNeighbour(hole.layers(state.members), able, within_s)


def is_in_vain(state: RingRecovery) -> bool:
    """Whether a hole stays open, once there is no question any more."""
    return _open_hole(_search(state)) is not None


def with_filler(state: RingRecovery, found: FillerFound, now: float) -> RingRecovery:
    """The search with one more place answered for."""
    search = _search(state)
    loss = search.losses[len(search.fillings)]
    next_member = _next_member(state, loss, found, now) if found.place == loss.place else None
    return replace(state, search=replace(search, fillings=(*search.fillings, next_member)))


def with_neighbour(state: RingRecovery, found: NeighbourFound) -> RingRecovery | None:
    """The search with one more hole answered for; None: nobody takes it."""
    search, place = _search(state), found.place
    hole = _open_hole(search)
    if hole is None or place is None:
        return None
    layers = both(state.members[place].layers, hole.layers(state.members))
    fed = search.fed | {place} if place > hole.last else search.fed
    extended = (*search.extended, Extends(place, layers))
    return replace(state, search=replace(search, extended=extended, fed=fed))


def next_members(state: RingRecovery) -> tuple[NextMember, ...]:
    """Members of the next epoch by place, when all is answered."""
    search = _search(state)
    answered = zip(search.losses, search.fillings, strict=True)
    places = {loss.place: next_member for loss, next_member in answered}
    places |= {next_member.place: next_member for next_member in search.extended}
    everyone = (places.get(place, Stays(place)) for place in range(len(state.members)))
    return tuple(next_member for next_member in everyone if next_member is not None)


def member_in(state: RingRecovery, next_member: NextMember) -> Member:
    """Member of its place in the next epoch."""
    member, fed = state.members[next_member.place], _search(state).fed
    match next_member:
        case Stays():
            return member
        case Reloads():
            return member.reloaded()
        case Fills(_, filler):
            return member.filled_by(filler)
        case Extends(place, layers):
            return Member(member.node, layers, is_fresh=place in fed, has_grown=True)


def _next_member(
    state: RingRecovery, loss: Loss, found: FillerFound, now: float
) -> NextMember | None:
    if found.standby is not None:
        return _filled(loss.place, found)
    node = state.members[loss.place].node
    if loss.may_load_again and node not in state.not_yet(now):
        return Reloads(loss.place)
    return _filled(loss.place, found)


def _filled(place: int, found: FillerFound) -> Fills | None:
    filler = found.standby or found.free
    return None if filler is None else Fills(place, filler)


def _nodes(state: RingRecovery, search: Search) -> Iterator[str]:
    for next_member in search.fillings:
        match next_member:
            case Fills(_, filler):
                yield filler.node
            case Reloads(place):
                yield state.members[place].node


def _open_hole(search: Search) -> Hole | None:
    """The first hole that no neighbour takes yet."""
    return next(iter([*holes(search.holes)][len(search.extended) :]), None)


def _taken(state: RingRecovery, search: Search) -> frozenset[int]:
    """Places whose stages take nothing more."""
    lost = {loss.place for loss in search.losses}
    return state.fresh | lost | {next_member.place for next_member in search.extended}


def _search(state: RingRecovery) -> Search:
    assert state.search is not None, "something was lost"
    return state.search
