"""Carries out assignments: weights, a stage process, its place in a ring. The latest one wins.

An assignment is the whole of what a node shall do. So there is one task, which is cancelled when
another assignment comes, and one stage process, which is kept where the new assignment wants the
same layers and it has not been in a ring yet, or where its own ring goes on in another epoch; then
it may take a lost stage's layers beside its own.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, assert_never

from molink.control.messages.assignment import (
    Assignment,
    Command,
    Extend,
    Follow,
    GoOn,
    Hold,
    InRing,
    Join,
    Load,
    Stop,
)
from molink.control.messages.base import SENTENCE_CHARACTERS_MAX, Unreadable
from molink.control.messages.cell import PairOrder
from molink.control.messages.payloads import (
    AssignedWork,
    LinkKeys,
    ShadowOrder,
    StageFact,
    StageLease,
)
from molink.errors import (
    DeviceMemoryError,
    LinkLostError,
    MolinkError,
    NoRoomError,
    StageError,
    UserError,
)
from molink.node.added_work import added_work
from molink.node.hosting import LinkRoutes, StageLauncher
from molink.node.shadow_route import ShadowRoute
from molink.node.stage_handle import StageHandle
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.messages import Borrow, SetPair
from molink.tasks import background_tasks, cancel, spawn, task_group

StageState = Literal["standby", "loading", "serving"]

log = logging.getLogger(__name__)

FRACTION_STEP, PROGRESS_PERIOD_S = 0.05, 5.0
"""Progress is reported when it has grown by so much, or at all after so long: a coordinator gives a
download up that does not go on."""

FORGET_AFTER_S = 120.0
"""A ring that has lost a stage goes on within 60 s, or ends; so long what it has cached is kept."""

STAND_READY_AFTER_S = 5.0
"""What has just joined has its users' prompts to compute, and importing torch takes seconds of a
processor."""


@dataclass(slots=True)
class StageManager:
    """Supervisor of this node's stage, if it holds one: brings it to what is assigned."""

    launcher: StageLauncher
    routes: LinkRoutes
    publish_fact: Callable[[StageFact], Awaitable[None]]
    health_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the stage has reported its health; the reader clears it."""
    operators_own: bool = False
    """Whether the coordinator's operator runs this node too: then a mistake that its stage finds is
    the operator's, and is reported as such."""
    state: StageState = "standby"
    assignment: Assignment | None = None
    handle: StageHandle | None = None
    times_full: int = 0
    """How often its device had no memory for what a stage was to hold, or for a step of it."""
    _work: AssignedWork | None = None
    """What the process holds."""
    _epoch: int | None = None
    """Epoch of the ring that the stage has joined; None: of none yet."""
    _task: asyncio.Task[None] | None = None
    _forgetting: asyncio.Task[None] | None = None
    """Forgets what a stage has cached that is gone."""
    _reported_fraction: float = 0.0
    _allowed: tuple[str, ...] = ()
    """Public keys in Z85 of those whose links the stage accepts."""
    _keys_revision: int = -1
    _shadow: ShadowRoute = field(default_factory=ShadowRoute)

    @property
    def health(self) -> StageHealth | None:
        """The stage's latest report on itself."""
        return self.handle.health if self.handle is not None else None

    @property
    def swap_fallback(self) -> str | None:
        """What the stage computes the library's way, and why; None: nothing, or there is none."""
        loaded = self.handle.loaded if self.handle is not None else None
        return loaded.swap_fallback if loaded is not None else None

    @property
    def weights_bytes(self) -> int:
        """What the stage holds of this PC's memory, beside its KV."""
        loaded = self.handle.loaded if self.handle is not None else None
        return loaded.weights_bytes if loaded is not None else 0

    @property
    def pids(self) -> frozenset[int]:
        """Ids of our own processes that compute."""
        return frozenset({self.handle.pid}) if self.handle is not None else frozenset()

    def allow(self, keys: LinkKeys) -> None:
        """Accept links of these peers only from now on, open ones too; keys that are older than the
        last are a broker's memory."""
        if keys.revision <= self._keys_revision:
            return
        self._keys_revision, self._allowed = keys.revision, keys.allowed
        if self.handle is not None and self.handle.load.keys is not None:
            self.handle.set_allowed(keys.allowed)

    def forget_orders(self) -> None:
        """Heed another coordinator's orders next, which may have lower numbers; it is stopped."""
        self.assignment, self._keys_revision, self._allowed = None, -1, ()
        self._shadow = ShadowRoute()

    async def lead_to_shadow(self, order: ShadowOrder) -> None:
        """Have the stage send the shadow of the next one what the ring leaves time for."""
        handle = self.handle
        if handle is not None and order.epoch == self._epoch:
            move = handle.move_path
            find = partial(self.routes.shadow_address, move=move)
            await self._shadow.lead(order, find, handle.set_shadow)

    def tell(self, order: StageLease | PairOrder) -> None:
        """Tell the stage of a lease, or of its pair, if it is in the ring that is meant."""
        is_meant = self.assignment is not None and self.assignment.ring == order.ring
        if self.handle is None or self._epoch is None or not is_meant:
            return
        if isinstance(order, PairOrder):
            self.handle.set_pair(SetPair(order.pairing))
        else:
            self.handle.borrow(Borrow(order.tokens, order.lease))

    def limits_changed(self) -> None:
        """Tell the stage the upload cap, which may have changed: it holds at once."""
        if self.handle is not None:
            self.handle.set_upload_cap(self.routes.upload_bytes_per_s())

    @property
    def busy(self) -> bool:
        """Whether a ring counts on this PC."""
        return self.assignment is not None and self.assignment.work is not None

    async def assign(self, assignment: Assignment) -> None:
        """Carry this out from now on; an assignment that is not newer changes nothing."""
        if self.assignment is not None and assignment.revision <= self.assignment.revision:
            return
        await cancel(self._task, self._forgetting)
        self.assignment = assignment
        self._task = spawn(self._carry_out(assignment))

    async def reclaim(self) -> None:
        """End the stage although a ring counts on it: the owner wants the PC."""
        assignment = self.assignment
        await cancel(self._task, self._forgetting)
        if assignment is not None:
            self.assignment = assignment.model_copy(update={"command": Stop()})
            await self._give_up(self.assignment, "Its owner has taken the PC back.")
            await self.launcher.stand_down()

    async def let_go(self) -> None:
        """End the stage on which nobody counts any more, and be free for another."""
        assignment = self.assignment
        await self.stop()
        if assignment is not None:
            self.assignment = assignment.model_copy(update={"command": Stop()})

    async def stop(self) -> None:
        """End the stage and whatever is under way."""
        await cancel(self._task, self._forgetting)
        await self._end_process()
        await self.launcher.stand_down()
        self.state = "standby"

    # -- carrying out ----------------------------------------------------------------------------

    async def _carry_out(self, assignment: Assignment) -> None:
        try:
            await self._obey(assignment)
        except (NoRoomError, DeviceMemoryError) as error:
            self.times_full += 1
            is_mistake = self.operators_own and isinstance(error, NoRoomError)
            await self._give_up(assignment, str(error), user_fault=is_mistake)
        except UserError as error:
            await self._give_up(assignment, str(error), user_fault=self.operators_own)
        except LinkLostError as error:
            about = _far_end(assignment.command, error.link)
            await self._give_up(assignment, str(error), about=about)
        except (MolinkError, OSError) as error:
            await self._give_up(assignment, str(error))
        except Exception as error:
            log.exception("an assignment could not be carried out")
            await self._give_up(assignment, f"The node stopped on {type(error).__name__}.")
        if self.handle is None:
            self._forgetting = spawn(self._forget())

    async def _forget(self) -> None:
        """Its ring has the layers loaded again by then, or never will."""
        await asyncio.sleep(FORGET_AFTER_S)
        await self.launcher.stand_down()

    async def _obey(self, assignment: Assignment) -> None:
        match assignment.command:
            case Stop():
                await self._stop_process(assignment)
            case Load(work=work):
                await self._load(assignment, work)
            case Join(work=work) as command:
                _require_current(self._is_loaded(work))
                await self._enter(assignment, command)
            case Hold(work=work):
                _require_current(self._holds(work) and self._epoch is not None)
                await self._hold()
            case Extend(work=work):
                _require_current(self._is_alive and self._epoch is not None)
                await self._extend(assignment, work)
            case GoOn(work=work) | Follow(work=work) as command:
                _require_current(self._holds(work))
                await self._enter(assignment, command)
            case Unreadable():
                raise StageError("The coordinator speaks another version: update MoLink.")
            case other:
                assert_never(other)

    async def _give_up(
        self, assignment: Assignment, why: str, *, user_fault: bool = False, about: str = ""
    ) -> None:
        """`about`: whom the link led to that was lost."""
        await self._end_process()
        self.state = "standby"
        fields = {"message": why[:SENTENCE_CHARACTERS_MAX], "user_fault": user_fault}
        await self._fact(assignment, "failed", **fields, about=about)

    async def _stop_process(self, assignment: Assignment) -> None:
        await self._end_process()
        await self.launcher.stand_down()
        self.state = "standby"
        await self._fact(assignment, "stopped", message=assignment.reason)

    async def _load(self, assignment: Assignment, work: AssignedWork) -> None:
        self.state = "loading"
        if not self._is_loaded(work):
            await self._end_process()
            async with task_group() as tasks:
                progress = self._progress(tasks, assignment, "downloading")
                directory = await self.launcher.prepare(work, progress)
                self.handle = await self.launcher.start(work, directory, self._allowed)
            self._work = work
        assert self.handle is not None
        if self.handle.loaded is None:  # One that loads goes on when its ring loses another stage.
            async with task_group() as tasks:
                await self.handle.wait_loaded(self._progress(tasks, assignment, "loading"))
        assert self.handle.loaded is not None
        self.routes.listen(self.handle.loaded)
        self.state = "standby"  # Until its ring, or another one, has it join.
        await self._fact(assignment, "loaded", line=self.handle.loaded)
        await self._watch_unjoined(self.handle)

    async def _enter(self, assignment: Assignment, command: InRing) -> None:
        """Take part in a ring's epoch."""
        handle, epoch = self.handle, assignment.epoch
        assert handle is not None, "only a loaded stage joins"
        order = await self.routes.join_command(epoch, command, handle.move_path)
        self._epoch = epoch  # From here on it is of no use to another ring.
        ready = await handle.join(order)
        self.state = "serving"
        if assignment is self.assignment:
            await self.publish_fact(StageFact.of_ready(assignment.revision, ready))
        async with background_tasks() as tasks:
            tasks.create_task(self._stand_ready(command.work))
            await handle.watch(self.routes.path_moved, self.health_changed)

    async def _hold(self) -> None:
        """Stay as it is while its ring, which has lost another stage, finds out how to go on."""
        assert self.handle is not None, "a survivor has a process"
        self.handle.hold_links()
        await self.handle.watch(self.routes.path_moved, self.health_changed)

    async def _extend(self, assignment: Assignment, work: AssignedWork) -> None:
        """Have the stage take a lost one's layers beside its own, while its ring waits."""
        handle = self.handle
        assert handle is not None and self._work is not None, "it has joined a ring"
        handle.hold_links()
        async with task_group() as tasks:
            if self._work != work:
                added = added_work(self._work, work)
                progress = self._progress(tasks, assignment, "downloading")
                handle.extend(await self.launcher.more(added, self._allowed, progress))
                self._work = work
            if handle.loaded is None:
                await handle.wait_loaded(self._progress(tasks, assignment, "loading"))
        assert handle.loaded is not None
        self.routes.listen(handle.loaded)
        await self._fact(assignment, "loaded", line=handle.loaded)
        await handle.watch(self.routes.path_moved, self.health_changed)

    async def _stand_ready(self, work: AssignedWork) -> None:
        await asyncio.sleep(STAND_READY_AFTER_S)
        try:
            await self.launcher.stand_ready(work)
        except OSError as error:  # The stage that serves does not need it.
            log.warning("no process can stand ready: %s", error)

    async def _watch_unjoined(self, handle: StageHandle) -> None:
        """Notice when a loaded stage dies before it has joined. Raises StageError."""
        code = await handle.child.process.wait()
        raise StageError(f"{handle.name} ended before it joined its ring (code {code}).")

    def _is_loaded(self, work: AssignedWork) -> bool:
        """Whether the process holds just this and has been in no ring."""
        return self._holds(work) and self._epoch is None

    @property
    def _is_alive(self) -> bool:
        return self.handle is not None and self.handle.child.process.returncode is None

    def _holds(self, work: AssignedWork) -> bool:
        return self._is_alive and self._work == work

    def _progress(
        self,
        tasks: asyncio.TaskGroup,
        assignment: Assignment,
        kind: Literal["downloading", "loading"],
    ) -> Callable[[float], None]:
        self._reported_fraction, reported_at = 0.0, time.monotonic()

        def report(fraction: float) -> None:
            nonlocal reported_at
            grown, now = fraction - self._reported_fraction, time.monotonic()
            is_due = grown > 0 and now - reported_at >= PROGRESS_PERIOD_S
            if grown >= FRACTION_STEP or fraction >= 1.0 or is_due:
                self._reported_fraction, reported_at = fraction, now
                tasks.create_task(self._fact(assignment, kind, fraction=fraction))

        return report

    async def _fact(self, assignment: Assignment, kind: Any, **fields: Any) -> None:
        if assignment is self.assignment:
            await self.publish_fact(StageFact(revision=assignment.revision, kind=kind, **fields))

    async def _end_process(self) -> None:
        """End the process, also when the caller is cancelled: two stages would not fit."""
        handle, self.handle, self._work, self._epoch = self.handle, None, None, None
        ending = asyncio.ensure_future(self._ended(handle))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise

    async def _ended(self, handle: StageHandle | None) -> None:
        try:
            await self._shadow.leave()
            await self.routes.leave()
        finally:
            if handle is not None:
                await handle.child.stop()


def _require_current(is_current: bool) -> None:
    """Raises StageError where a command is for a process that is not there any more."""
    if not is_current:
        raise StageError("Its stage ended before it joined its ring.")


def _far_end(command: Command | Unreadable, link: str) -> str:
    """Far end of a link that the stage has lost: the id of its neighbour, or "coordinator"."""
    if not isinstance(command, Join | GoOn):
        return ""
    lost = command.next_link if link == "next" else command.coordinator_link
    return lost.to if lost is not None else ""
