"""The control plane: topics, and what nodes publish there."""

from molink.control.messages.base import ModelSize
from molink.control.messages.cell import CardFacts, CellFacts, EchoesTold, LeaseHeld
from molink.control.messages.payloads import (
    AssignedWork,
    Device,
    FormatCost,
    NodeHealth,
    NodeState,
    NodeWish,
    PathMeasured,
    PathReport,
    Presence,
    Profile,
    RateSeen,
    RatesSeen,
    StageFact,
    StageLink,
    StepCost,
    WeightsSource,
)
from molink.control.messages.topics import (
    ACCEPTED,
    ALL_TOPICS,
    ASSIGNMENT,
    CELL,
    COORDINATOR,
    FACT,
    HEALTH,
    LEASE,
    LINK_KEYS,
    PAIR,
    PATHS,
    PRESENCE,
    PROBE,
    PROFILE,
    SEEN,
    SERVICES,
    SHADOW,
    WISH,
    read_message,
)
from molink_scheduler.head.settings import RingTerms
from tests.golden.codec import Codec

NODE, OTHER = "abcdefghijklmnop", "qrstuvwxyz234567"
KEY, OTHER_KEY = "k" * 40, "%" * 40
LONGEST = "Stück für Stück. " * 29

# -- topics ---------------------------------------------------------------------------------------

TOPICS = Codec(
    "control-topics",
    lambda topic: f"{topic.of(NODE)} | {topic.of_all} | qos {topic.qos} | {topic.retained}",
)
TOPICS.add(
    accepted=lambda: ACCEPTED,
    assignment=lambda: ASSIGNMENT,
    cell=lambda: CELL,
    coordinator=lambda: COORDINATOR,
    fact=lambda: FACT,
    health=lambda: HEALTH,
    lease=lambda: LEASE,
    link_keys=lambda: LINK_KEYS,
    pair=lambda: PAIR,
    paths=lambda: PATHS,
    presence=lambda: PRESENCE,
    probe=lambda: PROBE,
    profile=lambda: PROFILE,
    seen=lambda: SEEN,
    services=lambda: SERVICES,
    shadow=lambda: SHADOW,
    wish=lambda: WISH,
)
assert {build() for build in TOPICS.builders.values()} == set(ALL_TOPICS)

# -- what is published there ----------------------------------------------------------------------


def publish(value) -> str:
    topic, message = value
    return f"{topic.of(NODE)} {message.model_dump_json()}"


def receive(line: str):
    path, payload = line.split(" ", 1)
    received = read_message(path, payload.encode(), retained=False)
    return received.topic, received.message


PAYLOADS = Codec("control-payloads", publish, receive)

SIZE = ModelSize(name="org/model", layers=80, layer_bytes=2**30, element_bytes=4, computed_bytes=2)
SMALL_SIZE = ModelSize(name="m", layers=1, layer_bytes=1)
SOURCE = WeightsSource(model="org/model", from_hub=True)
WORK = AssignedWork(
    layers=(10, 20), device="cuda:3", dtype="bfloat16", kv_tokens=131_072, threads=8, weights=SOURCE
)
LINK = StageLink(
    to=OTHER,
    public_key=OTHER_KEY,
    addresses=("192.168.1.20:7000", "[2001:db8::1]:7000", "pc.example.org:65535"),
    port_name="ring",
    relay="relay.example.org:7000",
)
TERMS = RingTerms(131_072, None, (1, 2, 3, 4), 512)
STEPS = StepCost(
    model="org/model",
    decode_fixed_s=0.00125,
    decode_row_s=1e-05,
    prefill_row_s=0.0001,
    head_row_s=0.002,
)


@PAYLOADS.value
def presence_online():
    return PRESENCE, Presence(
        name="Annas PC – Küche",
        incarnation="0123456789abcdef",
        started_unix_s=1_700_000_000.25,
        version="0.1.0",
        online=True,
    )


@PAYLOADS.value
def presence_gone():
    return PRESENCE, Presence(
        name="x" * 60,
        incarnation="8letters",
        started_unix_s=-1.0,
        version="",
        online=False,
        reason=LONGEST,
    )


@PAYLOADS.value
def profile_of_one_device():
    return PROFILE, Profile(
        devices=(Device(kind="cpu", name="Ryzen™", memory_bytes=2**33, free_bytes=0),),
        cpu_threads=1,
        memory_bytes=2**33,
        disk_free_bytes=0,
        upload_mbps=0,
        download_mbps=0.0,
    )


@PAYLOADS.value
def profile_with_everything():
    card = Device(
        kind="cuda",
        index=63,
        name="NVIDIA GeForce RTX 3060",
        memory_bytes=2**50,
        free_bytes=2**33,
        cap_bytes=2**32,
        threads=1024,
        element_bytes=4,
    )
    return PROFILE, Profile(
        devices=(card, card),
        cpu_threads=4096,
        memory_bytes=2**50,
        disk_free_bytes=2**50,
        upload_mbps=37.5,
        download_mbps=100_000,
        upload_cap_mbps=20.0,
        coordinator_rtt_ms=31.4,
        nat="cone",
        addresses=("192.168.1.20:7000",),
        direct=False,
        clock_offset_s=-7200.5,
        steps=STEPS,
        formats=(FormatCost(format="int4_g128", read_s=0.0142, row_s=0.0071),),
    )


@PAYLOADS.value
def profile_of_nothing():
    return PROFILE, Profile(
        devices=(),
        cpu_threads=1,
        memory_bytes=0,
        disk_free_bytes=0,
        upload_mbps=0,
        download_mbps=0,
    )


@PAYLOADS.value
def paths():
    ways = (
        PathMeasured(
            to=OTHER, path="direct", address="10.0.0.2:7000", rtt_ms=12.5, rate_mbps=940.25
        ),
        PathMeasured(to=OTHER, path="relay", address="r:1", rtt_ms=60_000, rate_mbps=0),
        PathMeasured(to=OTHER, path="none", rtt_ms=0, rate_mbps=0),
    )
    return PATHS, PathReport(round=2**40, paths=ways)


@PAYLOADS.value
def paths_to_nobody():
    return PATHS, PathReport(round=0, paths=())


@PAYLOADS.value
def seen():
    rates = (RateSeen(sender=OTHER, rate_mbps=37.125), RateSeen(sender=NODE, rate_mbps=0))
    return SEEN, RatesSeen(rates=rates)


@PAYLOADS.value
def seen_of_nobody():
    return SEEN, RatesSeen(rates=())


@PAYLOADS.value
def health_without_a_stage():
    return HEALTH, NodeHealth(incarnation="i", state=NodeState.STANDBY, uptime_s=0)


@PAYLOADS.value
def health_with_a_stage():
    return HEALTH, NodeHealth(
        incarnation="0123456789abcdef",
        state=NodeState.SERVING,
        uptime_s=86_400.5,
        stage={"kv_tokens_used": 7, "busy_share": 0.5, "links": []},
        paths={"next": "direct", "coordinator": "relay"},
    )


@PAYLOADS.value
def health_of_a_pc_that_lends():
    facts = CellFacts(
        started=1_700_000_000_000,
        memory_bytes=8 * 10**9,
        cores=4,
        why_less="6.00 GB of main memory are free beside what always stays so.",
        own_room_bytes=2**40,
        port=65_535,
        incarnation=2**63 - 1,
        leases=(LeaseHeld(lease=7, size_bytes=10**9, held_bytes=65_536),),
        ended=(6, 5),
        echoes=(EchoesTold(lender=OTHER, round=3, milliseconds=(0.25, 1.5)),),
    )
    return HEALTH, NodeHealth(incarnation="i", state=NodeState.STANDBY, uptime_s=0, cell=facts)


@PAYLOADS.value
def health_of_a_pc_whose_card_lends():
    card = CardFacts(
        started=1_700_000_000_001,
        memory_bytes=8 * 10**9,
        port=65_534,
        incarnation=5,
        leases=(LeaseHeld(lease=8, size_bytes=10**9),),
        device="cuda:1",
        bytes_per_s=280.8e9,
    )
    echoes = (EchoesTold(lender=f"{OTHER}/cuda:1", round=3, milliseconds=(0.25,)),)
    facts = CellFacts(started=1_700_000_000_000, host="10.0.0.2", card=card, echoes=echoes)
    return HEALTH, NodeHealth(incarnation="i", state=NodeState.STANDBY, uptime_s=0, cell=facts)


for one_state in ("joining", "loading", "paused", "draining", "lost"):
    PAYLOADS.add(
        **{
            f"health_{one_state}": lambda state=one_state: (
                HEALTH,
                NodeHealth(incarnation="i", state=NodeState(state), uptime_s=1),
            )
        }
    )

for one_kind in ("downloading", "loading", "ready", "stopped"):
    PAYLOADS.add(
        **{
            f"fact_{one_kind}": lambda kind=one_kind: (
                FACT,
                StageFact(revision=3, kind=kind, fraction=0.25),
            )
        }
    )


@PAYLOADS.value
def fact_loaded():
    line = {"port": 7001, "coordinator_port": None, "device": "cpu", "dtype": "float32"}
    return FACT, StageFact(revision=2**53, kind="loaded", fraction=1, line=line)


@PAYLOADS.value
def fact_failed():
    return FACT, StageFact(revision=-1, kind="failed", message=LONGEST, user_fault=True)


@PAYLOADS.value
def wish_to_serve():
    return WISH, NodeWish(wish="serve")


@PAYLOADS.value
def wish_to_pause():
    return WISH, NodeWish(wish="pause", reason="On battery.")


@PAYLOADS.value
def wish_to_leave():
    return WISH, NodeWish(wish="leave", reason="Its owner has taken it out of the cluster.")


@PAYLOADS.value
def fact_ready_without_some():
    return FACT, StageFact(revision=8, kind="ready", missing=(7, 2**40))


CODECS = (TOPICS,)
