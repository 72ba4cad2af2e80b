"""Starts the stages of this PC's nodes: fetches weights and starts the process meanwhile.

All nodes share one directory of weights. They fetch one after the other, as only one process may
write there at a time, and a layer that two of them hold lies there once. What a node's stage runs
from, another one's download never removes.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from molink.checkpoint.stage_size import stage_size
from molink.checkpoint.weights_manifest import DRAFTER_PART
from molink.control.messages.payloads import AssignedDrafter, AssignedWork, WeightsSource
from molink.errors import MolinkError, StageError
from molink.node.kept_cache import KeptCache
from molink.node.stage_handle import StageHandle, WarmStage
from molink.printable import plain_line
from molink.stage_protocol.draft_model import DraftModel, drafts_beside
from molink.stage_protocol.messages import LoadStage
from molink.wire.curve_keys import CurveKeys
from molink_agent.daemon.membership import (
    MemberAdmission,
    Membership,
)
from molink_agent.daemon.routes import ListenAddress
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.data_files import WEIGHTS_DIR
from molink_agent.limits.assignment_check import refusal_of_work
from molink_agent.limits.lent import lent_cache, lent_disk_bytes, unused_memory_bytes
from molink_agent.limits.limits import OwnerLimits
from molink_agent.limits.owner_policy import OwnerPolicy
from molink_agent.probe.machine import disk_free_bytes, read_machine
from molink_agent.weights import HubSource, WeightsLimits, ensure_weights
from molink_agent.weights.source import Downloaded, Source
from molink_scheduler.units import GB

log = logging.getLogger(__name__)

LAYERS_SHARE = 0.9
"""Share of a download's progress that is of the layers, where a model that drafts comes after."""

WARM_BYTES_SPARE = 2 * GB
"""Bytes of unused memory from which a process may wait for a stage: with torch it takes a quarter
of a GB or more."""


@dataclass(slots=True)
class WeightsCache:
    """The weights on this PC's disk, shared by all its nodes."""

    pc: ThisPc
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    _used: dict[int, frozenset[Path]] = field(default_factory=dict)
    """Directories of weights that each node asked for last, by its number."""

    async def get(
        self, number: int, member: Membership, work: AssignedWork, report: Callable[[float], None]
    ) -> str:
        """Fetch what is missing of a stage's layers, from the hub or from the coordinator that the
        node has joined; the directory to load them from. Raises MolinkError."""
        source = _source(work.weights, member)
        drafts = work.drafts
        path = await self._ensured(number, source, range(*work.layers), report, drafts=drafts)
        self._used[number] = frozenset({path})
        return str(path)

    async def get_drafter(
        self,
        number: int,
        member: Membership,
        drafter: AssignedDrafter,
        report: Callable[[float], None],
    ) -> str:
        """Fetch what is missing of a model that drafts beside a stage's layers; its directory.
        Raises MolinkError."""
        source = _source(drafter.weights, member, f"/{DRAFTER_PART}")
        path = await self._ensured(number, source, range(drafter.layers), report, self._own(number))
        self._used[number] = self._own(number) | {path}
        return str(path)

    async def _ensured(
        self,
        number: int,
        source: Source,
        layers: range,
        report: Callable[[float], None],
        own: frozenset[Path] = frozenset(),
        *,
        drafts: bool = False,
    ) -> Path:
        """`own`: directories that the node's stage will use beside this one; `drafts`: with the
        checkpoint's layer that drafts, where the layers are the last."""
        stage = self.pc.stages[number]

        def progress(downloaded: Downloaded) -> None:
            stage.download = downloaded
            report(downloaded.fraction)

        async with self._fetching:
            try:
                return await ensure_weights(
                    source,
                    layers,
                    self.pc.data_dir / WEIGHTS_DIR,
                    WeightsLimits(disk_bytes_max=self._cap(), keep=self._kept(number) | own),
                    progress,
                    drafts=drafts,
                )
            finally:
                stage.download = None

    def _own(self, number: int) -> frozenset[Path]:
        return self._used.get(number, frozenset())

    def _cap(self) -> int | None:
        limits, free = self.pc.limits.limits, disk_free_bytes(self.pc.data_dir)
        return lent_disk_bytes(limits, free, 0) if limits.disk_bytes else None

    def _kept(self, number: int) -> frozenset[Path]:
        """Weights from which the stages of other nodes run."""
        return frozenset(
            path
            for other, paths in self._used.items()
            for path in paths
            if other != number and self.pc.stages[other].manager.busy
        )


def _source(weights: WeightsSource, member: Membership, part: str = "") -> Source:
    """The hub, or a part of what the coordinator offers that the node has joined."""
    if weights.from_hub:
        return HubSource(weights.model)
    return replace(member.weights, url=f"{member.weights.url}{part}")


@dataclass(frozen=True, slots=True)
class _Promise:
    """Memory that an assignment may take."""

    limits: OwnerLimits
    """OwnerLimits of the owner under which the memory was promised."""
    memory_bytes: int


@dataclass(slots=True)
class AgentStageLauncher:
    """Starts the stages of one node; an agent's StageLauncher."""

    number: int
    """Number of the node on this PC."""
    admission: MemberAdmission
    owner: OwnerPolicy
    listen_address: ListenAddress
    cache: WeightsCache
    _warm: WarmStage = field(default_factory=WarmStage)
    _kept: KeptCache = field(default_factory=KeptCache)
    _memory_bytes: int = 0
    """Lent to the stage that is being prepared."""
    _drafter: DraftModel | None = None
    """Model that is to draft beside that stage."""

    async def prepare(self, work: AssignedWork, report: Callable[[float], None]) -> str:
        """Start the stage's process, and download meanwhile what is missing of its layers."""
        promised = await self._check(work)
        await self._warm.begin(work.threads)
        try:
            directory = await self._fetch(work, report)
            self._memory_bytes = (await self._check(work, directory, promised)).memory_bytes
            return directory
        except BaseException:
            await self._warm.drop()
            raise

    async def start(
        self, work: AssignedWork, directory: str, allowed: tuple[str, ...]
    ) -> StageHandle:
        """Tell the process what to load."""
        load = self._kept.lent(self._command(work, directory, allowed))
        return await self._warm.start("This PC's stage", load)

    async def more(
        self, work: AssignedWork, allowed: tuple[str, ...], report: Callable[[float], None]
    ) -> LoadStage:
        """Download what is missing of layers that the stage takes beside its own."""
        self._memory_bytes = (await self._check(work)).memory_bytes
        return self._command(work, await self._fetch(work, report), allowed)

    async def _fetch(self, work: AssignedWork, report: Callable[[float], None]) -> str:
        """Fetch a stage's layers, and the model that drafts beside them, if one does."""
        drafter = work.drafter
        if drafter is not None and not drafts_beside(work.layers, drafter.reads_from):
            drafter = None
        share = 1.0 if drafter is None or drafter.refused else LAYERS_SHARE
        member = self.admission.membership
        directory = await self.cache.get(
            self.number, member, work, lambda done: report(share * done)
        )
        self._drafter = None
        if drafter is not None:
            rest = 1.0 - share
            self._drafter = await self._drafting(drafter, lambda done: report(share + rest * done))
        return directory

    async def _drafting(
        self, drafter: AssignedDrafter, report: Callable[[float], None]
    ) -> DraftModel:
        """The model that drafts, once it is here; refused where it cannot be had."""
        name = plain_line(drafter.weights.model)
        named = DraftModel(
            "",
            drafter.layers,
            name,
            drafter.kv_tokens,
            refused=drafter.refused,
            reads_from=drafter.reads_from,
        )
        if drafter.refused:
            return named
        try:
            member = self.admission.membership
            path = await self.cache.get_drafter(self.number, member, drafter, report)
        except MolinkError as error:
            named = replace(named, refused=str(error))
            log.warning("%s", named.trouble)
            return named
        return replace(named, model=path)

    def _command(self, work: AssignedWork, directory: str, allowed: tuple[str, ...]) -> LoadStage:
        pair, pc = self.admission.pair, self.cache.pc
        lent = lent_cache(pc.limits.limits, pc.data_dir, len(pc.stages))
        return LoadStage(
            model=directory,
            work=work,
            address=self.listen_address.host,
            first_port=self.listen_address.first_link_port,
            keys=CurveKeys(pair.public_z85, pair.secret_z85, allowed),
            memory_bytes=self._memory_bytes,
            cache_room=lent if work.prefix_cache else None,
            drafter=self._drafter,
        )

    async def stand_ready(self, work: AssignedWork) -> None:
        """Start a process that waits for a stage, where its owner would not miss the memory and has
        set no bound: a stage may fill it."""
        pc = self.cache.pc
        machine = await asyncio.to_thread(read_machine, pc.data_dir)
        is_bound = pc.limits.limits.memory_bytes is not None
        if not is_bound and unused_memory_bytes(machine) >= WARM_BYTES_SPARE:
            await self._warm.begin(work.threads)

    async def stand_down(self) -> None:
        """End the process that waits, and forget what the stage has cached."""
        self._kept.forget()
        await self._warm.drop()

    async def _check(
        self, work: AssignedWork, directory: str = "", promised: _Promise | None = None
    ) -> _Promise:
        """Hold it against what the owner lends now, once its files are in `directory` by what they
        take. Raises StageError.

        The memory that was `promised` before the download still counts unless the owner has changed
        a limit: the process that waits takes some of it, and nobody is to download in vain.
        """
        wish, pc = self.owner.wish, self.cache.pc
        withheld, limits = "" if wish.wish == "serve" else wish.reason, pc.limits.limits
        kept_bytes = 0
        if promised is not None and promised.limits == limits:
            kept_bytes = promised.memory_bytes
        loan = await asyncio.to_thread(pc.loan, pc.stages[self.number], withheld, kept_bytes)
        size = None
        if directory:
            size = await asyncio.to_thread(stage_size, Path(directory), work.layers)
        refused = refusal_of_work(work, loan, size)
        if refused:
            raise StageError(refused)
        return _Promise(limits, loan.memory_bytes)
