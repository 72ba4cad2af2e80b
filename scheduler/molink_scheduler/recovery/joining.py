"""Way of all stages into an epoch: what each keeps, and what they have in common then."""

from collections.abc import Sequence

from molink_scheduler.kv.changes import AwayBlocks, RetainBlocks
from molink_scheduler.recovery.events import PlaceReady
from molink_scheduler.recovery.instructions import ResumeRequests
from molink_scheduler.recovery.members import Member, RingRoom
from molink_scheduler.recovery.state import RingRecovery
from molink_scheduler.resume import Positions, Resume, common_runs


def resumes(state: RingRecovery, listed: Positions) -> tuple[Resume, ...]:
    """What each stage keeps, by place. The tail's next stage is the head, to which it sends no
    rows."""
    held, stay = state.held(listed), state.chains_stay
    return tuple(
        Resume(listed, held.get(place), held.get(place + 1), stay)
        for place in range(len(state.members))
    )


def rows_behind(state: RingRecovery, listed: Positions) -> int:
    """Rows that fresh stages lack of the requests that go on, all told."""
    held = state.held(listed)
    return sum(_tokens(listed) - _tokens(one) for one in held.values())


def lacks(member: Member, ring: RingRoom) -> str:
    """What a loaded stage has too little room for: "states", "tokens", or nothing."""
    room = member.room
    assert room is not None, "it has loaded"
    if room.state_slots is not None and room.state_slots < (ring.state_slots or 0):
        return "states"
    return "tokens" if room.kv_tokens < ring.kv_tokens else ""


def resume_requests(state: RingRecovery, ready: Sequence[PlaceReady]) -> ResumeRequests:
    """How the ring goes on when all stages are in its epoch."""
    survivors = [one for one in ready if one.place not in state.fresh]
    return ResumeRequests(
        frozenset(request_id for request_id, _ in state.listed),
        frozenset(request_id for one in ready for request_id in one.missing),
        rows_behind(state, state.listed),
        RetainBlocks.of(common_runs(one.cached for one in survivors), common_away(ready))
        if state.chains_stay
        else None,
    )


def common_away(ready: Sequence[PlaceReady]) -> AwayBlocks:
    """Blocks that all stages hold in the same tier below their devices' memory, as the head numbers
    them: none where one of them knows another directory's numbers."""
    held = [one.away for one in sorted(ready, key=lambda one: one.place)]
    directory = held[0].directory
    if any(one.directory != directory for one in held):
        return AwayBlocks(directory=directory)
    host, file = common_runs(one.host for one in held), common_runs(one.file for one in held)
    return AwayBlocks(host, file, directory)


def _tokens(positions: Positions) -> int:
    return sum(tokens for _, tokens in positions)
