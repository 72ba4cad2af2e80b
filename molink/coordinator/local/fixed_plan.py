"""The fixed plan of `molink serve`: which layers each stage holds.

Nothing is measured for it. Layers are split evenly or as `--layers` asks, and every stage gets what
the operator asked for.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.description import ModelDescription, read_declared
from molink.checkpoint.draft_layer import elsewhere
from molink.checkpoint.quantized.too_large import FOR_PC, stage_refusal
from molink.checkpoint.stage_size import KV_TOKENS_MIN, stage_size_of
from molink.config.data_dir import state_dir
from molink.config.layer_split import even_split, parse_layers
from molink.config.link_schedule import LinkSchedule
from molink.config.settings import ServeSettings
from molink.control.messages.payloads import AssignedWork, Profile, WeightsSource
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.slowdown import Slowdown, StepsSeen
from molink.coordinator.planning.cluster_plan import ClusterPlan, PlannedRing, PlannedStage
from molink.errors import UserError
from molink.serving.served_model import public_name
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.draft_model import DraftModel, drafts_beside
from molink.stage_protocol.messages import LoadStage
from molink.stage_protocol.pairing import Pairing
from molink_scheduler.link.upload_budget import check_cap
from molink_scheduler.routing.roles import Role, pairs_of

log = logging.getLogger(__name__)

LOCAL_ADDRESS = "127.0.0.1"
"""Address at which stages and coordinator listen for each other."""

DECODE_HEADER_BYTES = 250
"""Frames around one decoded row: chunk and batch headers, acknowledgement."""

DECODE_TOKENS_PER_S_MIN = 5.0
"""What one decode stream needs: slower than people read, an answer is no use."""

NO_PORT = 0
"""Port in the profile of a local node, which has no peer service: its stage's ports are its own."""


@dataclass(frozen=True, slots=True)
class RingPlan:
    """Ring of local nodes that the operator asked for."""

    path: str
    """Path of the model, as every stage finds it: a directory, or a hub id."""
    works: tuple[AssignedWork, ...]
    nodes: int
    """Count of stages and standbys."""
    link: LinkSchedule | None = None
    upload_mbps: float | None = None
    event_log: Path | None = None
    """Where the stages' event logs go, with a stage's number behind the name."""
    log_format: str = "text"
    cache_room: CacheRoom | None = None
    """Room that this PC has for cached KV; None: there is none."""
    drafter: DraftModel | None = None
    """Model that drafts, or why it does not; None: there is none."""
    attention_device: str = ""
    """Device with its stages' KV, apart from the weights; empty: that lies with these."""
    trouble: str = ""
    """Why its tail does not draft although it was asked to, in a sentence."""
    roles: tuple[Role, ...] = (Role.BOTH,)
    """Role of each ring, all of which have these works."""
    pairs_folder: str = ""
    """Folder of the sockets of paired stages, which nobody else may enter."""

    def load(self, index: int, work: AssignedWork) -> LoadStage:
        """The first command of a stage."""
        return LoadStage(
            model=self.path,
            work=work,
            address=LOCAL_ADDRESS,
            stages_here=self.nodes,
            cache_room=self.cache_room and self.cache_room.shared_by(self.nodes),
            drafter=self._drafter(work.layers),
            attention_device=self.attention_device,
            pairing=self._pairing(index),
        )

    def _pairing(self, index: int) -> Pairing | None:
        """The end of a hand-over that a stage of a ring has; None: it has none."""
        ring, stage = divmod(index, len(self.works))
        pairs = pairs_of(self.roles)
        decode_ring = pairs.get(ring, ring)
        if decode_ring not in pairs.values():
            return None
        return Pairing(f"{self.pairs_folder}/pair-{decode_ring}-{stage}", sends=ring in pairs)

    def _drafter(self, layers: tuple[int, int]) -> DraftModel | None:
        drafter = self.drafter
        is_here = drafter is not None and drafts_beside(layers, drafter.reads_from)
        return drafter if is_here else None

    def drafting(self, drafter: DraftModel | None) -> "RingPlan":
        """The ring with a model that drafts; refused, in a warning, where the last stage lacks
        layers whose KV it reads."""
        if drafter is None or drafter.reads_from is None:
            return replace(self, drafter=drafter)
        start, end = self.works[-1].layers
        if drafter.reads_from < start:
            why = f"{elsewhere(drafter.reads_from, end)}."
            drafter = replace(drafter, refused=why, reads_from=None)
            log.warning("%s", drafter.trouble)
            return replace(self, drafter=drafter)
        works = tuple(replace(work, drafts=True) for work in self.works)
        return replace(self, drafter=drafter, works=works)

    def name(self, index: int) -> str:
        """Name of a node, and of the stage that it hosts at first."""
        ring, stage = divmod(index, len(self.works))
        if len(self.roles) > 1:
            return f"{self.roles[ring]} {ring}, stage {stage}"
        return f"standby {index - len(self.works)}" if ring else f"stage {stage}"

    def stage_arguments(self, index: int) -> tuple[str, ...]:
        """Arguments of a stage's process."""
        events = (f"{self.event_log}.{index}",) if self.event_log is not None else ()
        return ("--log-format=json", *events) if self.log_format == "json" else events

    def profile(self, index: int) -> Profile:
        """Profile of a node that is not measured: where it is, and its cap."""
        return Profile(
            devices=(),
            cpu_threads=self.works[0].threads,
            memory_bytes=0,
            disk_free_bytes=0,
            upload_mbps=0,
            download_mbps=0,
            upload_cap_mbps=self.upload_mbps,
            addresses=(f"{LOCAL_ADDRESS}:{NO_PORT}",),
        )


def fixed_plan(
    settings: ServeSettings, path: str, description: ModelDescription, drafts: bool = False
) -> RingPlan:
    """The ring that settings ask for; `drafts`: its tail drafts with a layer of the checkpoint.
    Raises UserError for options that do not fit the model."""
    _check_upload(settings, description)
    works = (_work(settings, path, layers) for layers in _ranges(settings, description))
    return RingPlan(
        path=path,
        works=tuple(replace(work, drafts=drafts) for work in works),
        nodes=settings.nodes * len(settings.roles) + settings.ring.standbys,
        roles=settings.roles,
        link=settings.link,
        upload_mbps=settings.upload_mbps,
        event_log=settings.event_log,
        log_format=settings.log_format,
        cache_room=_cache_room(settings),
        attention_device=settings.attention_device,
    )


@dataclass(frozen=True, slots=True)
class FixedPlanner:
    """Planner whose rings are what the operator asked for."""

    node_ids: tuple[str, ...]
    """Ids of the nodes that host the stages, ring by ring."""
    works: tuple[AssignedWork, ...]
    """Works of each ring."""
    standbys: int = 0
    """Nodes beside them, which may have taken their places while the ring serves."""
    trouble: str = ""

    async def plan(self, nodes: Sequence[Node]) -> ClusterPlan:
        """Each ring, once all of its nodes may be used; no second one of those whose places in it
        standbys have taken."""
        if nodes and len(nodes) <= self.standbys:
            return ClusterPlan((), shortage="The stages serve, or are about to be started.")
        here = {node.node_id for node in nodes}
        whole = [ids for ids in self.rings if here.issuperset(ids)]
        if not whole:
            count = len(here.intersection(self.node_ids))
            shortage = f"{count} of {len(self.node_ids)} stages can be started now."
            return ClusterPlan((), shortage=shortage)
        rings = [zip(ids, self.works, strict=True) for ids in whole]
        return ClusterPlan(
            tuple(PlannedRing(tuple(PlannedStage(*stage) for stage in ring)) for ring in rings)
        )

    @property
    def rings(self) -> list[tuple[str, ...]]:
        """Ids of the nodes of each ring."""
        stages = len(self.works)
        return [self.node_ids[at : at + stages] for at in range(0, len(self.node_ids), stages)]

    def slowdown(
        self, stage: PlannedStage, node: Node, rows: int, seen: StepsSeen
    ) -> Slowdown | None:
        """Not known: its nodes report no step times."""
        return None

    def link_rates_mbps(self, nodes: Sequence[Node]) -> Sequence[float]:
        """Not known: they measure no paths."""
        return [0.0] * len(nodes)

    def gains_by(self, ring: PlannedRing, place: int, node: Node, members: Sequence[Node]) -> bool:
        """Never: all stages run here."""
        return False

    def outgrown(self, ring: PlannedRing, node: Node) -> bool:
        """Never: its nodes have no owner who sets a cap."""
        return False

    def work_on(self, node: Node, work: AssignedWork, kv_tokens: int) -> AssignedWork | None:
        """The same on every node: all run here."""
        return replace(work, kv_tokens=kv_tokens)

    def undrafted(self, work: AssignedWork) -> AssignedWork:
        """The same: what drafts is on the disk, too."""
        return work

    def fetch_s(self, node: Node, work: AssignedWork) -> float:
        """No time: the weights are on the disk."""
        return 0.0

    def is_worth(
        self,
        present: Sequence[PlannedRing],
        plan: ClusterPlan,
        nodes: Sequence[Node],
        kept_tokens: Sequence[int],
    ) -> str:
        """Never: there is no other plan."""
        return ""


def _ranges(settings: ServeSettings, description: ModelDescription) -> Sequence[tuple[int, int]]:
    if settings.layers is None:
        return even_split(description.layers, settings.nodes, description.together)
    return parse_layers(settings.layers, description.layers, settings.nodes, description.together)


def _cache_room(settings: ServeSettings) -> CacheRoom | None:
    """None: nothing is cached. Raises UserError for a file that has no place."""
    ram, disk = settings.cache.cache_ram_bytes, settings.cache.cache_disk_bytes
    if not settings.ring.prefix_cache:
        return None
    try:
        return CacheRoom(ram, disk, str(state_dir() / "kv-cache") if disk else "")
    except RuntimeError:
        raise UserError("This user has no home folder: leave --cache-disk-gb out.") from None


def _work(settings: ServeSettings, path: str, layers: tuple[int, int]) -> AssignedWork:
    return AssignedWork(
        layers=layers,
        device=settings.device,
        dtype=settings.served.dtype,
        kv_tokens=settings.kv_tokens,
        kv_host_tokens=settings.ring.kv_host_tokens,
        threads=settings.threads,
        kv_dtype=settings.served.kv_dtype,
        weights=WeightsSource(model=public_name(path)),
        prefix_cache=settings.ring.prefix_cache,
    )


def check_memory(
    works: Sequence[AssignedWork], path: str, free_bytes: int, standbys: int = 0
) -> None:
    """Refuse stages that together are larger than this PC's free memory, with standbys for the
    largest; each alone asks again where it loads, on its device. Raises UserError."""
    widest = max(works, key=lambda work: work.layers[1] - work.layers[0])
    works = [work for work in (*works, *(widest,) * standbys) if work.device == "cpu"]
    checkpoint = open_checkpoint(path)
    try:
        sizes = [stage_size_of(checkpoint, work.layers, work.drafts) for work in works]
    except UserError:  # What cannot be read, the stages say; no size is known of it.
        return
    kv_tokens = max((work.kv_tokens or KV_TOKENS_MIN for work in works), default=0)
    needed_bytes = sum(
        size.held_bytes(4 if work.dtype == "float32" else 2, kv_tokens, work.kv_dtype)
        for size, work in zip(sizes, works, strict=True)
        if size is not None
    )
    what, declared = f"{checkpoint.name} in {len(works)} stages", read_declared(checkpoint)
    refused = stage_refusal(
        what,
        needed_bytes,
        free_bytes,
        place="on this PC",
        kv_tokens=kv_tokens,
        declared=declared,
        ways=FOR_PC,
    )
    if refused:
        raise UserError(refused)


def _check_upload(settings: ServeSettings, description: ModelDescription) -> None:
    if settings.upload_mbps is None:
        return
    element_bytes = 4 if settings.served.dtype == "float32" else 2
    message_bytes = description.hidden_size * element_bytes + DECODE_HEADER_BYTES
    try:
        check_cap(settings.upload_mbps * 1e6 / 8, message_bytes * DECODE_TOKENS_PER_S_MIN)
    except ValueError as error:
        raise UserError(f"--upload-mbps {settings.upload_mbps:g}: {error}.") from None
