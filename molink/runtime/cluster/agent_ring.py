"""A ring of stages that agents host: all load, then all join, then it serves.

The counterpart of `local_ring`. Here nothing is started: nodes are told, and tell when they are
done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from molink.control.messages import StageLink
from molink.runtime.cluster.agent_stage import AgentStage
from molink.runtime.cluster.node_book import Node
from molink.runtime.local_ring import gathered
from molink.runtime.ring import RingFacts
from molink.runtime.supervision import StageLoaded

__all__ = ["AgentRing", "JoinTerms", "build_ring", "link_to"]

ADDRESSES_MAX = 16
"""Of a link, as messages allow."""


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """What all stages of a ring are told alike, and where the coordinator is."""

    micro_batch_count: int | None
    span_tokens: int | None
    policy: str
    coordinator_key: str
    """CURVE public key, Z85."""
    coordinator_addresses: tuple[str, ...]
    """host:port where the tail connects."""
    coordinator_port_name: str
    """Of that port, at the relay."""
    relay: str
    """host:port, or empty."""


@dataclass(slots=True)
class AgentRing:
    """A ring that serves."""

    facts: RingFacts
    stages: list[AgentStage]
    kv_tokens_capacity: int
    relay: str = ""
    """host:port that leads to its nodes too."""

    async def watch(self) -> None:
        """Follow the stages; raises StageError as soon as one is gone."""
        await gathered(stage.watch() for stage in self.stages)

    @property
    def requests_link(self) -> StageLink:
        """From the coordinator to the head."""
        head = self.stages[0]
        assert head.loaded is not None and head.loaded.coordinator_port is not None
        return link_to(head.node, head.loaded.coordinator_port, "requests", self.relay)


async def build_ring(
    stages: Sequence[AgentStage], terms: JoinTerms, progressed: Callable[[int, float], None]
) -> AgentRing:
    """Load and join all stages. Raises StageError when one cannot."""

    def report(index: int) -> Callable[[float], None]:
        return lambda fraction: progressed(index, fraction)

    loaded = await gathered(stage.load(report(index)) for index, stage in enumerate(stages))
    capacity = min(stage.kv_tokens_capacity for stage in loaded)
    await gathered(
        stage.join(_join_fields(stages, index, loaded, terms, capacity))
        for index, stage in enumerate(stages)
    )
    facts = RingFacts(stages[0].epoch, terms.policy, None)
    return AgentRing(facts, list(stages), capacity, terms.relay)


def link_to(node: Node, port: int, port_name: str, relay: str) -> StageLink:
    """A link to a port of a node, at the hosts where it says that it can be reached."""
    profile = node.profile
    assert profile is not None and node.public_key, "only measured members are in a ring"
    hosts = [address.rpartition(":")[0] for address in profile.addresses]
    addresses = tuple(dict.fromkeys(f"{host}:{port}" for host in hosts)) if profile.direct else ()
    return StageLink(
        to=node.node_id,
        public_key=node.public_key,
        addresses=addresses,
        port_name=port_name,
        relay=relay,
    )


def _join_fields(
    stages: Sequence[AgentStage],
    index: int,
    loaded: Sequence[StageLoaded],
    terms: JoinTerms,
    capacity: int,
) -> dict[str, Any]:
    following = (index + 1) % len(stages)
    is_tail = following == 0
    next_link = link_to(stages[following].node, loaded[following].port, "ring", terms.relay)
    if following == index:  # A ring of one PC closes on itself.
        ways = (f"127.0.0.1:{loaded[index].port}", *next_link.addresses)
        next_link = next_link.model_copy(update={"addresses": ways[:ADDRESSES_MAX], "relay": ""})
    return {
        "join": {
            "kv_tokens_capacity": capacity,
            "micro_batch_count": terms.micro_batch_count,
            "micro_batch_candidates": tuple(range(1, 2 * len(stages) + 1)),
            "span_tokens": terms.span_tokens,
            "policy": terms.policy,
        },
        "next_link": next_link,
        "coordinator_link": _coordinator_link(terms) if is_tail else None,
    }


def _coordinator_link(terms: JoinTerms) -> StageLink:
    return StageLink(
        to="coordinator",
        public_key=terms.coordinator_key,
        addresses=terms.coordinator_addresses,
        port_name=terms.coordinator_port_name,
        relay=terms.relay,
    )
