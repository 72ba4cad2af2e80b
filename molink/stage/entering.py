"""State that a stage keeps when it enters an epoch of its ring."""

from typing import Protocol, assert_never

from molink.engine_protocol.values import Prepared, RowsKept
from molink.stage_protocol.messages import EnterRing, FollowRing, JoinRing
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.resume import Resume
from molink_scheduler.stage.core import StageCore, WorkSource


def resume_of(command: EnterRing) -> Resume:
    """What the command lets it keep: nothing where the ring begins."""
    match command:
        case JoinRing(resume=resume):
            return resume or Resume()
        case FollowRing():
            return Resume()
        case _:
            assert_never(command)


class NewCore(Protocol):
    """Maker of the core with which a stage goes on; `joining.new_core` explains it."""

    def __call__(
        self,
        layers: Prepared,
        join: EnterRing,
        room: StageRoom,
        kept: RowsKept,
        before: WorkSource | None,
    ) -> StageCore:
        """The core; `before`: the source of work of the epoch before, if its cache stays."""
