"""The control plane: what nodes are told."""

from molink.control.messages.assignment import (
    Assignment,
    Extend,
    Follow,
    GoOn,
    Hold,
    Join,
    Load,
    Stop,
)
from molink.control.messages.base import Unreadable
from molink.control.messages.cell import CellOrder, EchoOrder, LeaseOrder, PairOrder
from molink.control.messages.payloads import (
    Accepted,
    AssignedWork,
    CoordinatorPresence,
    LinkKeys,
    PeerAddress,
    ProbeOrder,
    Services,
    ShadowOrder,
    StageLease,
    StageLink,
    WeightsSource,
)
from molink.control.messages.topics import (
    ACCEPTED,
    ASSIGNMENT,
    CELL,
    COORDINATOR,
    LEASE,
    LINK_KEYS,
    PAIR,
    PROBE,
    SERVICES,
    SHADOW,
)
from molink.stage_protocol.lan_lease import LanLease
from molink.stage_protocol.pairing import Pairing, PairLink
from molink_scheduler.resume import Resume
from tests.golden.values_control import KEY, LINK, OTHER, OTHER_KEY, PAYLOADS, SIZE, TERMS, WORK


@PAYLOADS.value
def cell_ordered():
    lease, key = LeaseOrder(lease=7, key="ab" * 32, size_bytes=10**9), "cd" * 32
    echo = EchoOrder(lender=OTHER, round=3, host="10.0.0.2", port=4000, lease=8, key=key)
    return CELL, CellOrder(serves=True, allow=(lease,), end=(5, 6), echoes=(echo,))


@PAYLOADS.value
def stage_lease():
    lease = LanLease("192.168.1.20", 4000, 1_700_000_000_000, "0a" * 32, 2**62, 2**34)
    return LEASE, StageLease(ring=3, tokens=131_072, lease=lease)


@PAYLOADS.value
def pair_order():
    link = PairLink(1_700_000_000_000, "0b" * 32, "192.168.1.20", 41_000)
    return PAIR, PairOrder(ring=3, pairing=Pairing(sends=True, link=link))


@PAYLOADS.value
def pair_order_of_none():
    return PAIR, PairOrder(ring=3)


@PAYLOADS.value
def cell_forgotten():
    return CELL, CellOrder()


@PAYLOADS.value
def assignment_to_stand_by():
    return ASSIGNMENT, Assignment(revision=0, command=Stop(), reason="No ring needs it now.")


@PAYLOADS.value
def assignment_to_load():
    work = AssignedWork(layers=(0, 1), device="cpu", dtype="auto", weights=WeightsSource(model="m"))
    return ASSIGNMENT, Assignment(
        revision=1, ring=0, epoch=7, stage=0, stages=1, command=Load(work=work)
    )


@PAYLOADS.value
def assignment_to_join_as_the_tail():
    to_coordinator = StageLink(to="coordinator", public_key=KEY, addresses=(), port_name="sampled")
    return ASSIGNMENT, Assignment(
        revision=2**53,
        ring=2,
        epoch=2**40,
        stage=3,
        stages=4,
        command=Join(work=WORK, terms=TERMS, next_link=LINK, coordinator_link=to_coordinator),
        reason="",
    )


@PAYLOADS.value
def assignment_to_go_on():
    resume = Resume(((7, 40), (2**40, 131_071)), held=())
    placed = {"work": WORK, "terms": TERMS, "next_link": LINK, "coordinator_link": None}
    command = GoOn(**placed, resume=resume)
    return ASSIGNMENT, Assignment(revision=8, ring=2, epoch=9, stages=2, command=command)


for one_command in (Extend(work=WORK), Hold(work=WORK), Follow(work=WORK, terms=TERMS)):
    PAYLOADS.add(
        **{
            f"assignment_to_{one_command.kind}": lambda command=one_command: (
                ASSIGNMENT,
                Assignment(revision=9, ring=2, epoch=9, stage=1, stages=2, command=command),
            )
        }
    )


@PAYLOADS.value
def assignment_that_is_unknown():
    command = Unreadable({"kind": "fly", "wings": 2}, "no command of this version: 'fly'")
    return ASSIGNMENT, Assignment(revision=10, command=command)


@PAYLOADS.value
def shadow_order():
    return SHADOW, ShadowOrder(revision=9, epoch=2**40, link=LINK)


@PAYLOADS.value
def shadow_order_for_none():
    return SHADOW, ShadowOrder(revision=10, epoch=3)


@PAYLOADS.value
def accepted():
    return ACCEPTED, Accepted(incarnation="0123456789abcdef", started_unix_s=1_700_000_000.125)


@PAYLOADS.value
def link_keys():
    return LINK_KEYS, LinkKeys(revision=5, allowed=(KEY, OTHER_KEY))


@PAYLOADS.value
def link_keys_of_nobody():
    return LINK_KEYS, LinkKeys(revision=0, allowed=())


@PAYLOADS.value
def services():
    secrets = {"relay_token": "a" * 64, "probe_key": "b" * 64}
    relay = "relay.example.org:7000"
    return SERVICES, Services(relay=relay, **secrets, stun_port=65_535, model=SIZE)


@PAYLOADS.value
def services_none():
    return SERVICES, Services()


@PAYLOADS.value
def probe_of_a_layer():
    return PROBE, ProbeOrder(round=0, model="m", peers=())


@PAYLOADS.value
def probe_of_everything():
    known = {"node_id": OTHER, "public_key": OTHER_KEY, "addresses": ("10.0.0.2:7000",)}
    peer = PeerAddress(**known, token="c" * 64)
    return PROBE, ProbeOrder(
        round=12,
        model="org/model",
        config={"architectures": ["LlamaForCausalLM"], "rope_theta": 1e6, "eos_token_id": None},
        peers=(peer, peer.model_copy(update={"addresses": (), "token": ""})),
        coordinator_token="d" * 64,
    )


@PAYLOADS.value
def coordinator_here():
    return COORDINATOR, CoordinatorPresence(online=True, session="s" * 40, model="org/model")


@PAYLOADS.value
def coordinator_gone():
    return COORDINATOR, CoordinatorPresence(online=False, session="")


CODECS = (PAYLOADS,)
