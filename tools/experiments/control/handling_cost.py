"""What does each thing cost the coordinator's thread that many nodes and users ask of it?

    python -m tools.experiments.control.handling_cost --out DIR

The coordinator's own parts in one process, without sockets and without rings that compute: what a
heartbeat costs from the inbox to the node book, idle and with a stage's whole report; a look for
silent nodes; the registry's answer whether a node is a member, and a node let in; an API key found
and counted; a request given to one of many rings, with a prompt of 2,000 tokens looked up in the
mirror of each; the report of all nodes and its body; and a plan, which is made beside the thread.
Processor time of one thread, medians of the rounds; about two minutes. What the MQTT library, the
broker, TLS and HTTP take comes on top (`control_scale`, `many_streams`, `relay_crowd`).
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from molink.api.answers import json_text
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KEYS_MAX, KeyStore
from molink.api.status import cluster_body
from molink.control.identity import KeyPair, node_id_of
from molink.control.inbox import NODE_BUDGET, Inbox
from molink.control.messages.joining import JoinRequest, request_to_join
from molink.control.messages.payloads import NodeHealth, NodeState, PathMeasured, PathReport
from molink.control.messages.topics import HEALTH
from molink.control.registry.registry import Registry
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.nodes.probing import PEERS_MAX
from molink.coordinator.reports.cluster_report import NO_HEALTH, build_report
from molink.coordinator.reports.node_reports import nodes_report
from molink.report.cluster import ClusterReport
from molink.stage_protocol.health import StageHealth
from molink_scheduler.link.facts import LinkReport
from molink_scheduler.placement import Goal, LinkFacts, Network
from molink_scheduler.placement.question import PlacementQuestion
from molink_scheduler.routing.prefix_mirror import PrefixMirror
from molink_scheduler.routing.ring_choice import Routing, choose_ring
from molink_scheduler.routing.ring_forecast import RingPace, RingState
from molink_scheduler.token_ids import TOKEN_BYTES
from tools.experiments.harness.experiment import (
    experiment,
    markdown_table,
    rounds_option,
    show,
    write_report,
)
from tools.experiments.placement.placement_clusters import home_model, home_nodes
from tools.experiments.swarm.member import Member

__all__ = ["main"]

NODES = (1000, 4000)
"""Up to what a coordinator takes for nodes today (`NODES_MAX`)."""

RINGS = (1, 10, 100, 1000)
MIRRORED_PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 10, 2_000, 200
"""Prompts in each ring's mirror, and the length of these and of the request's."""

PLANNED, LAYERS, DELAY_S = (250, 500, 1000), 32, 0.03
"""Nodes that plans are made of, layers of the model, and the delay of every link one way."""

LET_IN = 200
"""Nodes that are let in while it is timed."""

SECONDS_OF_HEARTBEATS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time of one thing."""

    what: str
    count: int
    """Nodes, keys or rings that there are."""
    microseconds: float
    size_bytes: int | None = None
    """Bytes of it on the wire, topic or head included; None: it is not sent."""


@experiment
@rounds_option(3)
def main(out: Path, rounds: int) -> None:
    """Print microseconds of a coordinator's thread by what is asked of it."""
    costs: list[Cost] = []
    for cost in _costs(rounds):
        click.echo(f"{cost.what}, {cost.count}: {cost.microseconds:.1f} us", err=True)
        costs.append(cost)
    write_report(out, "handling_cost", {"rounds": rounds, "costs": [_fields(one) for one in costs]})
    rows = [
        [one.what, f"{one.count:,}", f"{one.microseconds:,.1f}", _size(one.size_bytes)]
        for one in costs
    ]
    show(markdown_table(["what", "nodes, keys or rings", "us", "bytes"], rows))


def _costs(rounds: int) -> Iterator[Cost]:
    for count in NODES:
        book = filled_book(count)
        yield heartbeats("heartbeat of an idle node", book, None, rounds)
        yield heartbeats("heartbeat of a serving node", book, serving_health(), rounds)
        yield silence(book, rounds)
        yield from reports(book, rounds)
    with tempfile.TemporaryDirectory() as folder:
        yield from registry_costs(Path(folder), rounds)
        yield key_check(Path(folder), rounds)
    yield from (ring_choice(count, rounds) for count in RINGS)
    yield from (plan(count) for count in PLANNED)


def _fields(cost: Cost) -> dict[str, object]:
    return {name: getattr(cost, name) for name in Cost.__slots__}


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes:,}"


def _each_us(act: Callable[[], object], times: int, rounds: int) -> float:
    """Median microseconds of one of so many things that an act does at a time."""
    used = []
    for _ in range(rounds):
        began_ns = time.thread_time_ns()
        act()
        used.append((time.thread_time_ns() - began_ns) / times / 1e3)
    return statistics.median(used)


# -- nodes ----------------------------------------------------------------------------------------


def filled_book(count: int) -> NodeBook:
    """The book of so many nodes that are there and have been measured."""
    book = NodeBook()
    for number in range(count):
        member = Member(number)
        book.take(member.node_id, member.presence(online=True), 0.0)
        book.take(member.node_id, member.made_up_profile(), 0.0)
        book.take(member.node_id, _paths(number), 0.0)
    return book


def _paths(number: int) -> PathReport:
    """Paths to as many neighbours as a node is told to measure."""
    measured = [
        PathMeasured(
            to=node_id_of(f"{number} to {one}".encode()), path="direct", rtt_ms=20.0, rate_mbps=20.0
        )
        for one in range(PEERS_MAX)
    ]
    return PathReport(round=0, paths=tuple(measured))


def serving_health() -> StageHealth:
    """Report of a stage in the middle of a ring that serves, with its link and its shadow's."""
    link = LinkReport(
        name="next",
        messages_sent=1_234_567,
        bytes_sent=9_876_543_210,
        decode_waiting=1,
        prefill_waiting=2,
        decode_queued_bytes=8_192,
        prefill_queued_bytes=524_288,
        chunk_bytes=24_576,
        rate_mbps=19.5632,
        rtt_ms=61.2345,
        queueing_delay_ms=3.4567,
        in_flight_bytes=49_152,
        foreign_upload=False,
        acks_refused=0,
    )
    return replace(
        NO_HEALTH,
        kv_tokens_used=12_345,
        busy_s=1_234.5678,
        busy_share=0.4321,
        steps=1_234_567,
        decode_step_s=0.0123456,
        prefill_row_s=0.000234567,
        links=(link, replace(link, name="shadow")),
        micro_batches_held=1.2345,
    )


def heartbeats(what: str, book: NodeBook, stage: StageHealth | None, rounds: int) -> Cost:
    """Heartbeats of all nodes, some seconds of them: taken in, read, checked, noted."""
    clock = _Seconds()
    inbox = Inbox(NODE_BUDGET, clock=clock)
    said = [(HEALTH.of(one), _health(stage, number)) for number, one in enumerate(book.nodes)]

    def take_all() -> None:
        for _ in range(SECONDS_OF_HEARTBEATS):
            clock.now_s += 1.0
            for path, payload in said:
                inbox.put(path, payload, retained=False)
            for received in inbox.read():
                book.take(received.node_id, received.message, received.arrived_s)

    each_us = _each_us(take_all, SECONDS_OF_HEARTBEATS * len(said), rounds)
    assert all(node.heard_at == clock.now_s for node in book), "every heartbeat was noted"
    return Cost(what, len(said), each_us, round(statistics.fmean(len(p) + len(b) for p, b in said)))


def _health(stage: StageHealth | None, number: int) -> bytes:
    state = NodeState.STANDBY if stage is None else NodeState.SERVING
    health = NodeHealth(
        incarnation="0123456789abcdef",
        state=state,
        uptime_s=10_000.123456 + number,
        stage=stage,
        paths={} if stage is None else {"next": "direct"},
    )
    return health.model_dump_json().encode()


@dataclass(slots=True)
class _Seconds:
    """Clock that is set by hand."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def silence(book: NodeBook, rounds: int) -> Cost:
    """One look for silent nodes, which comes twice a second."""
    now_s = max(node.heard_at for node in book)
    heard = dict.fromkeys(book.nodes, now_s)

    def look() -> None:
        for node_id, at_s in heard.items():
            book.note_heard(node_id, at_s)
        assert not book.notice_silence(now_s), "all have just been heard"

    return Cost("look for silent nodes", len(heard), _each_us(look, 1, rounds))


def reports(book: NodeBook, rounds: int) -> Iterator[Cost]:
    """The report of all nodes, which is made once a second for the events, and as the body of
    GET /cluster; of rings comes on top."""
    made: list[ClusterReport] = []
    sizes: list[int] = []

    def make() -> None:
        nodes = tuple(nodes_report(list(book), {}, {}, {}))
        made.append(ClusterReport("m", (), None, False, nodes, build_report(), ()))

    def write() -> None:
        sizes.append(len(json_text(cluster_body(made[-1]))))

    count = len(book.nodes)
    yield Cost("report of all nodes, once a second", count, _each_us(make, 1, rounds))
    each_us = _each_us(write, 1, rounds)
    yield Cost("the same as the body of GET /cluster", count, each_us, sizes[-1])


# -- registry and keys ----------------------------------------------------------------------------


def registry_costs(folder: Path, rounds: int) -> Iterator[Cost]:
    """A node let in, and the question whether it is a member."""
    registry = Registry.open(folder)
    registry.url = "https://127.0.0.1:1"
    pairs = [KeyPair.generate() for _ in range(LET_IN)]
    invite = registry.make_invite(3600.0, LET_IN, "", time.time())
    asked = [request_to_join(invite, f"pc{one}", "1", time.time()) for one in range(LET_IN)]
    admit = _each_us(lambda: _admit(registry, pairs, asked), LET_IN, 1)
    yield Cost("a node let in, without its handshake", LET_IN, admit)
    ids = [pair.node_id for pair in pairs]
    member = _each_us(lambda: [registry.member(one) for one in ids], LET_IN, rounds)
    yield Cost("is it a member?", LET_IN, member)
    registry.close()


def _admit(registry: Registry, pairs: Sequence[KeyPair], asked: Sequence[JoinRequest]) -> None:
    for pair, request in zip(pairs, asked, strict=True):
        registry.admit(pair.public, request, time.time())


def key_check(folder: Path, rounds: int) -> Cost:
    """An API key found among as many as there may be, and counted against its rate."""
    store, now = KeyStore.open(folder), time.time()
    secrets = [store.create(now, rate_per_min=600)[1] for _ in range(KEYS_MAX)]
    keys = LiveKeys(KeyStore.open(folder))

    def check() -> None:
        for number, secret in enumerate(secrets):
            found = keys.find(secret)
            assert found is not None, "it was just made"
            keys.spend(found, float(number))
            keys.usage(found).requests += 1

    each_us = _each_us(check, KEYS_MAX, rounds)
    keys.store.close()
    store.close()
    return Cost("an API key checked", KEYS_MAX, each_us)


# -- routing --------------------------------------------------------------------------------------


def ring_choice(count: int, rounds: int) -> Cost:
    """A request given to one of so many rings, looked up in the mirror of each."""
    drawn = random.Random(1)
    mirrors = [_mirror(drawn) for _ in range(count)]
    states = [_state(drawn) for _ in range(count)]
    prompt = _prompt(drawn)

    def choose() -> int:
        met = [
            replace(state, cached_tokens=mirror.cached_tokens("", prompt))
            for state, mirror in zip(states, mirrors, strict=True)
        ]
        return choose_ring(Routing.MOLINK, met, PROMPT_TOKENS, ANSWER_TOKENS)

    times = max(1, 1000 // count)
    each_us = _each_us(lambda: [choose() for _ in range(times)], times, rounds)
    return Cost("a request given to a ring", count, each_us)


def _prompt(drawn: random.Random) -> bytes:
    return drawn.randbytes(PROMPT_TOKENS * TOKEN_BYTES)


def _mirror(drawn: random.Random) -> PrefixMirror:
    mirror = PrefixMirror.of_ring(MIRRORED_PROMPTS * PROMPT_TOKENS)
    for _ in range(MIRRORED_PROMPTS):
        mirror.computes("", _prompt(drawn))
    return mirror


def _state(drawn: random.Random) -> RingState:
    pace = RingPace(drawn.uniform(200, 800), 0.2, drawn.uniform(0.1, 0.3), 0.005)
    return RingState(pace, drawn.randrange(8_000), drawn.randrange(4), drawn.randrange(8))


def plan(count: int) -> Cost:
    """A plan of so many homes, which a process beside the coordinator's computes; each has measured
    the links to as many others as nodes are told to."""
    nodes = home_nodes(random.Random(1), count)
    link = LinkFacts(1e9, DELAY_S)
    pairs = [(one, (one + step) % count) for one in range(count) for step in range(1, PEERS_MAX)]
    links = {(nodes[a].id, nodes[b].id): link for a, b in pairs}
    asked = PlacementQuestion.of(home_model(LAYERS), nodes, Network(links, link), Goal())
    return Cost("a plan, beside the loop", count, _each_us(asked.answer, 1, 1))


if __name__ == "__main__":
    main()
