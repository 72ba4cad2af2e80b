"""Experiment of `molink sim sessions`: agents' sessions over rings that cache prompts, and over the
same rings without.

Rings are those of every other simulation, with the core of every stage. What cannot be timed is
given: a PC's host memory is copied from at HOST_BYTES_PER_S.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from molink.checkpoint.model_config import model_shape
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.workload.sessions import LATE_FROM, AgentSession
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.routing.ring_choice import Routing
from molink_scheduler.units import GB
from molink_sim.even_ring import even_ring
from molink_sim.outcome import RequestOutcome
from molink_sim.scenario import EntrySpec, LinkSpec, RingSpec, Scenario, StageSpec
from molink_sim.simulate import World
from molink_sim.systems import system_named

HOST_BYTES_PER_S = 5e9
"""Rate at which cached KV is copied from host memory: a quarter of what PCIe 4 x16 carries."""

DRAIN_S = 30 * 24 * 3600.0
"""Virtual time after which sessions that have not ended are given up."""


@dataclass(frozen=True, slots=True)
class SessionRings:
    """Equal rings that sessions are played over."""

    rings: int
    model: str
    gpu: str
    stages: int
    bandwidth_mbps: float
    latency_ms: float
    kv_tokens: int | None
    """Tokens that each ring's devices hold; None: what fits beside the weights."""
    host_gb: float
    """Host memory of each PC for cached KV."""
    routing: str
    sessions_at_once: int
    seed: int

    def specs(self) -> tuple[RingSpec, ...]:
        """The rings. Raises UserError for those that cannot be."""
        link = LinkSpec(self.bandwidth_mbps, self.latency_ms / 1000)
        ring = even_ring(self.model, self.gpu, self.stages, link, kv_tokens_max=self.kv_tokens)
        stages = tuple(replace(one, tiers=self._tiers(one)) for one in ring.stages)
        return (replace(ring, stages=stages),) * self.rings

    def _tiers(self, stage: StageSpec) -> CacheTiers:
        block_bytes = BLOCK_TOKENS * stage.layers * model_shape(self.model).kv_token_bytes
        return CacheTiers(
            int(self.host_gb * GB / block_bytes), copy_block_s=block_bytes / HOST_BYTES_PER_S
        )


def replay(
    rings: SessionRings, sessions: Sequence[AgentSession], *, cache: bool
) -> list[RequestOutcome]:
    """All turns of all sessions, with the prefix cache or without. Raises UserError when a turn was
    refused: these rings hold no such session."""
    scenario = Scenario(
        rings.specs(),
        (),
        system_named("molink", prefix_cache=cache),
        EntrySpec(Routing(rings.routing)),
        sessions=sessions,
        sessions_at_once=rings.sessions_at_once,
        duration_s=1.0,
        drain_s=DRAIN_S,
        seed=rings.seed,
    )
    world = World(scenario)
    world.run()
    turns = world.coordinator.requests
    if any(not turn.finished for turn in turns):
        tokens = world.rings[0].tokens_max
        raise UserError(f"a session is longer than the {tokens:,} tokens that a ring holds")
    return turns


def figures(turns: Sequence[RequestOutcome]) -> dict[str, JsonObject]:
    """Figures of all turns, of the first ones and of late ones."""
    numbers, seen = list[int](), dict[int | None, int]()
    for turn in turns:
        seen[turn.session] = seen.get(turn.session, 0) + 1
        numbers.append(seen[turn.session])
    numbered = list(zip(numbers, turns, strict=True))
    return {
        f"1 to {LATE_FROM - 1}": _figures([one for at, one in numbered if at < LATE_FROM]),
        f"{LATE_FROM} on": _figures([one for at, one in numbered if at >= LATE_FROM]),
        "all": _figures(turns),
    }


def _figures(turns: Sequence[RequestOutcome]) -> JsonObject:
    prompts = sum(turn.input_tokens for turn in turns)
    ttfts = [turn.ttft_s for turn in turns]
    return {
        "turns": len(turns),
        "hit_rate": sum(turn.cached_tokens for turn in turns) / prompts if turns else None,
        "ttft_p50_s": median(ttfts) if turns else None,
        "ttft_max_s": max(ttfts, default=None),
    }
