"""State that a stage keeps when it enters an epoch of its ring."""

from typing import assert_never

from molink.stage_protocol.messages import EnterRing, FollowRing, JoinRing
from molink_scheduler.resume import Resume


def resume_of(command: EnterRing) -> Resume:
    """What the command lets it keep: nothing where the ring begins."""
    match command:
        case JoinRing(resume=resume):
            return resume or Resume()
        case FollowRing():
            return Resume()
        case _:
            assert_never(command)
