"""Stages and their supervisors, what rings are told, what is remembered."""

import asyncio
import json
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from molink.control.messages.assignment import Assignment, Join, Load
from molink.control.messages.payloads import (
    AssignedWork,
    Device,
    Presence,
    Profile,
    StageFact,
    StageLink,
    StepCost,
    WeightsSource,
)
from molink.coordinator.nodes.node import Contribution, Node
from molink.coordinator.reports.ledger import LEDGER_FILE, Ledger
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.ring import JoinTerms
from molink.coordinator.upkeep.ring_building import RingRoutes, build_ring
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.health import (
    CacheTiersHealth,
    HostCacheHealth,
    PackingHealth,
    PairHealth,
    RoomOffer,
    StageHealth,
)
from molink.stage_protocol.lan_lease import LanLease
from molink.stage_protocol.messages import HEALTH as HEALTH_FIELDS
from molink.stage_protocol.messages import (
    Borrow,
    FollowRing,
    HoldLinks,
    JoinRing,
    LoadProgressed,
    LoadStage,
    MovePath,
    PathMoved,
    SetAllowed,
    SetCacheRam,
    SetPair,
    SetRoom,
    SetShadow,
    SetUploadCap,
    StageFailed,
    StageLoaded,
    StageReady,
    StageWork,
    decode_line,
    encode_line,
)
from molink.stage_protocol.pairing import Pairing, PairLink
from molink.stage_protocol.progress import ShadowLag, ShadowProgress
from molink.wire.curve_keys import CurveKeys
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.resume import Resume
from tests.golden.codec import Codec, from_text, text
from tests.golden.values_joining import schema

KEY, OTHER_KEY = "k" * 40, "%" * 40

# -- lines between a stage and its supervisor -----------------------------------------------------

LINES = Codec("stage-lines", text(encode_line), from_text(decode_line))

RAW = PackingHealth("raw", 0, 0, 0.0)
PACKED = PackingHealth("int8", 2**40, 2**39, 12.5)
LINK = LinkReport(
    name="next",
    messages_sent=12,
    bytes_sent=2**40,
    decode_waiting=1,
    prefill_waiting=2,
    decode_queued_bytes=300,
    prefill_queued_bytes=400_000,
    chunk_bytes=4096,
    rate_mbps=20.125,
    rtt_ms=60.5,
    queueing_delay_ms=0.0,
    in_flight_bytes=70_000,
    foreign_upload=True,
    acks_refused=3,
)
HEALTH = StageHealth(
    kv_tokens_used=700,
    busy_s=1.5,
    busy_share=0.25,
    steps=31,
    requests_running=4,
    requests_waiting=0,
    frames_refused=2,
    packed=PACKED,
    unpacked=RAW,
    bytes_saved=2**39,
    decode_round_s=0.125,
    micro_batch_count=3,
    decode_step_s=0.004,
    prefill_row_s=1e-05,
    links=(LINK, LINK),
    cache_tiers=CacheTiersHealth(2**31, 2**40, 160, 16),
    host_cache=HostCacheHealth(2**33, 2**32, 2**31, "others need the memory: 1.0 GB are free"),
    pair=PairHealth(7, True, 41_000, True, 500, 2**34, 1.5, 0, 3, 2**20, 0.25, "it is not there"),
)
PAIRING = Pairing(link=PairLink(7, "0b" * 32))
HEALTH_OF_A_MIDDLE_STAGE = StageHealth(
    kv_tokens_used=0,
    busy_s=0.0,
    busy_share=0.0,
    steps=0,
    requests_running=None,
    requests_waiting=None,
    frames_refused=0,
    packed=RAW,
    unpacked=RAW,
    bytes_saved=0,
    decode_round_s=None,
    micro_batch_count=None,
    decode_step_s=0.0,
    prefill_row_s=0.0,
    links=(),
)


HEALTH_OF_A_SHADOW = replace(
    HEALTH_OF_A_MIDDLE_STAGE,
    shadow=ShadowProgress(2**40, ((7, 33), (2**40, 1))),
    shadow_lag=ShadowLag(12, 0.25),
)


@LINES.value
def load_stage():
    return LoadStage(
        model='/modèles/llama "3"',
        work=StageWork((0, 2**31), "cuda:0", "bfloat16", 131_072, 8),
        address="10.0.0.2",
        stages_here=2,
        keys=CurveKeys(KEY, OTHER_KEY, (KEY, OTHER_KEY)),
    )


@LINES.value
def load_stage_by_itself():
    return LoadStage("org/model", StageWork((3, 4), "auto", "auto"), "127.0.0.1")


@LINES.value
def load_stage_that_takes_what_is_idle_for_its_cache():
    room = CacheRoom(None, 2**34, "/data/kv-cache", stages=3)
    work = StageWork((0, 1), "cpu", "float32")
    return LoadStage("m", work, "127.0.0.1", cache_room=room)


@LINES.value
def load_stage_whose_lender_is_in_the_lan():
    lease = LanLease("192.168.1.20", 40_000, 7, "0f" * 32, 2**62 + 1, 2**34)
    work = StageWork((0, 1), "cpu", "float32", kv_host_tokens=65_536, lan_lease=lease)
    return LoadStage("m", work, "127.0.0.1")


@LINES.value
def load_stage_that_accepts_nobody():
    keys = CurveKeys(KEY, OTHER_KEY)
    return LoadStage("m", StageWork((0, 1), "cpu", "float32"), "127.0.0.1", keys=keys)


@LINES.value
def join_ring_at_the_tail():
    return JoinRing(
        epoch=2**53,
        next_address="tcp://127.0.0.1:5000",
        coordinator_address="tcp://10.0.0.1:65535",
        ring=RingTerms(131_072, 4, (1, 2, 3, 4), 512),
        upload_bytes_per_s=2.5e6,
        next_key=KEY,
        coordinator_key=OTHER_KEY,
    )


@LINES.value
def join_ring_in_the_middle():
    return JoinRing(1, "tcp://h:1", None, RingTerms(64, None, (), None), None)


@LINES.value
def join_ring_through_the_relay():
    terms = RingTerms(64, None, (), None)
    return JoinRing(1, "tcp://127.0.0.1:1", None, terms, None, next_relayed=True)


@LINES.value
def join_ring_again():
    resume = Resume(((7, 40), (2**40, 131_071)), next_held=())
    terms = RingTerms(64, None, (), None, replay_log_bytes=2_500_000_000)
    return JoinRing(2, "tcp://h:1", None, terms, None, resume=resume)


@LINES.value
def join_ring_where_a_shadow_is_behind():
    resume = Resume(((7, 40), (9, 12)), next_held=((7, 33),))
    return JoinRing(3, "tcp://h:1", None, RingTerms(64, None, (), None), None, resume=resume)


@LINES.value
def follow_ring():
    terms = RingTerms(64, None, (), None)
    return FollowRing(3, terms)


LINES.add(
    set_shadow=lambda: SetShadow(2**40, "tcp://h:1", KEY),
    set_no_shadow=lambda: SetShadow(3, None),
    stage_health_of_a_shadow=lambda: HEALTH_OF_A_SHADOW,
    set_allowed=lambda: SetAllowed((KEY, OTHER_KEY)),
    set_allowed_nobody=lambda: SetAllowed(()),
    set_upload_cap=lambda: SetUploadCap(12_500.5),
    set_upload_cap_none=lambda: SetUploadCap(None),
    set_cache_ram=lambda: SetCacheRam(1_500_000_000),
    set_cache_ram_none=lambda: SetCacheRam(None),
    set_pair=lambda: SetPair(PAIRING),
    set_no_pair=SetPair,
    hold_links=HoldLinks,
    set_room=lambda: SetRoom(320),
    borrow=lambda: Borrow(4096, LanLease("192.168.1.20", 4000, 17, "0a" * 32, 2**62, 2**30)),
    move_path_next=lambda: MovePath("next", "tcp://10.0.0.2:7000"),
    move_path_coordinator=lambda: MovePath("coordinator", "tcp://[::1]:1"),
    move_path_to_the_relay=lambda: MovePath("next", "tcp://127.0.0.1:7000", relayed=True),
    load_progressed=lambda: LoadProgressed(0.5),
    stage_loaded_head=lambda: StageLoaded(5000, 5001, "cuda:0", "bfloat16", 131_072, 2**40),
    stage_loaded=lambda: StageLoaded(65_535, None, "cpu", "float32", 64, 0),
    stage_ready=StageReady,
    stage_ready_with_less_room=lambda: StageReady(3, offer=RoomOffer(2, 320)),
    stage_ready_without_some=lambda: StageReady(3, (7, 2**40)),
    path_moved=lambda: PathMoved("next", "tcp://10.0.0.2:7000", True, ""),
    path_not_moved=lambda: PathMoved("coordinator", "tcp://h:1", False, "nobody answers – yet"),
    stage_failed=lambda: StageFailed("Der Speicher reicht nicht.\nUse fewer --kv-tokens.", False),
    stage_failed_by_its_user=lambda: StageFailed("", True),
    stage_failed_on_a_full_card=lambda: StageFailed("It is full.", False, device_full=True),
    stage_health=lambda: HEALTH,
    stage_health_in_the_middle=lambda: HEALTH_OF_A_MIDDLE_STAGE,
)

HEALTHS = Codec(
    "stage-health-fields",
    lambda health: json.dumps(asdict(health)),
    lambda line: HEALTH_FIELDS.read(json.loads(line)),
)
"""As they stand in a node's heartbeat."""

HEALTHS.add(stage_health=lambda: HEALTH, in_the_middle=lambda: HEALTH_OF_A_MIDDLE_STAGE)
HEALTHS.add(of_a_shadow=lambda: HEALTH_OF_A_SHADOW)

# -- what a ring's stages are told ----------------------------------------------------------------

NODE_IDS = tuple(letter * 16 for letter in "abc")


def node(place: int, **more) -> Node:
    profile = Profile(
        devices=(Device(kind="cpu", name="cpu", memory_bytes=2**33, free_bytes=2**32),),
        cpu_threads=4,
        memory_bytes=2**33,
        disk_free_bytes=2**40,
        upload_mbps=20,
        download_mbps=100,
        addresses=(f"192.168.1.2{place}:7000", f"pc{place}.example.org:7000"),
        direct=place != 2,
        steps=StepCost(model="m", decode_fixed_s=0.001, decode_row_s=1e-5, prefill_row_s=1e-4),
    )
    presence = Presence(
        name=f"pc {place}", incarnation="a" * 12, started_unix_s=1.0, version="1", online=True
    )
    known = {"public_key": f"{place}" * 40, "presence": presence, "profile": profile}
    return Node(NODE_IDS[place], **(known | more))


@dataclass
class ToldNode:
    """Answers for a stage's node as soon as it is told something."""

    stage: AgentStage
    told: list[dict[str, Any]] = field(default_factory=list)

    async def assign(self, node: Node, assignment: Assignment) -> None:
        told = assignment.model_copy(update={"revision": len(self.told) + 1})
        self.told.append(told.model_dump(mode="json"))
        head_port = 5001 if assignment.stage == 0 else None
        line = asdict(StageLoaded(5000, head_port, "cpu", "float32", 64, 10))
        kind = "ready" if isinstance(told.command, Join) else "loaded"
        node.assignment = told
        node.fact = StageFact(
            revision=told.revision, kind=kind, line=line if kind != "ready" else {}
        )

    async def allow_links(self, node: Node, keys: tuple[str, ...]) -> None:
        self.told.append({"allowed": list(keys)})


def stage_on(place: int, stages: int) -> ToldNode:
    work = AssignedWork(
        layers=(2 * place, 2 * place + 2),
        device="cpu",
        dtype="float32",
        kv_tokens=64,
        threads=2,
        weights=WeightsSource(model="m"),
    )
    told = ToldNode(None)  # type: ignore[arg-type]
    told.stage = AgentStage(
        node=node(place),
        assignment=Assignment(
            revision=0, ring=1, epoch=7, stage=place, stages=stages, command=Load(work=work)
        ),
        accepted_keys=(f"{(place - 1) % stages}" * 40, KEY),
        commands=told,
    )
    return told


TERMS = JoinTerms(
    ring=RingTerms(span_tokens=256),
    coordinator=StageLink(
        to="coordinator",
        public_key=KEY,
        addresses=("10.0.0.1:6000",),
        port_name="sampled-7",
        relay="relay.example.org:7000",
    ),
)


def told_to_join(stages: int) -> str:
    """All assignments of a ring that forms."""
    nodes = [stage_on(place, stages) for place in range(stages)]
    stages_list = [one.stage for one in nodes]

    async def as_they_are(routes: RingRoutes) -> RingRoutes:
        return routes

    asyncio.run(build_ring(stages_list, TERMS, lambda place, fraction: None, as_they_are))
    for one in nodes:
        assert isinstance(Assignment(**one.told[-1]).command, Join), "the nodes understand it"
    return "\n".join(json.dumps(line) for one in nodes for line in one.told)


RINGS = Codec("ring-assignments", told_to_join)
RINGS.add(of_one_node=lambda: 1, of_three_nodes=lambda: 3)

# -- files ----------------------------------------------------------------------------------------


def ledger_content(given: dict[str, Contribution]) -> str:
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger.open(Path(directory))
        with ledger.together():
            for node_id, one in given.items():
                ledger.add(node_id, f"name of {node_id}", one)
        ledger.close()
        with closing(sqlite3.connect(Path(directory) / LEDGER_FILE)) as connection:
            return schema(connection) + "\n\n" + "\n".join(connection.iterdump())


def read_ledger(content: str) -> dict[str, Contribution]:
    with tempfile.TemporaryDirectory() as directory:
        with closing(sqlite3.connect(Path(directory) / LEDGER_FILE)) as connection:
            connection.executescript(content.split("\n\n", 1)[1])
        ledger = Ledger.open(Path(directory))
        found = dict(ledger.all())
        ledger.close()
    return found


LEDGERS = Codec("ledger-rows", ledger_content, read_ledger)
LEDGERS.add(
    of_nobody=dict,
    of_two_nodes=lambda: {
        NODE_IDS[0]: Contribution(),
        NODE_IDS[1]: Contribution(86_400.25, 2**53, 2**62),
    },
)

CODECS = (LINES, HEALTHS, RINGS, LEDGERS)
"""All of them."""
