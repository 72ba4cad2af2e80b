"""Two pools in virtual time: Conductor, prefill nodes, the hand-over of KV, decode nodes.

An event is an arrival, the end of a prompt, the arrival of its KV, or the end of an answer. Prompts
wait at a prefill node in their order and are computed one after the other, so when one will be
computed is known when it comes: the forecasts of Conductor are exact. A prompt counts as cached
from when it is sent there; whoever needs it on that node comes behind it.

KV goes layer by layer while the prompt is computed, what was cached as well: what is left at its
end is a layer's, or what the lines could not take so far. A line has one transfer at a time.
"""

from dataclasses import dataclass, field
from random import Random

from molink_scheduler.routing.admission import NO_TARGETS, AdmissionPolicy, Targets
from molink_scheduler.routing.conductor import (
    NO_COPIES,
    Prefill,
    PrefillNode,
    choose_prefill,
    conduct,
    decoding_at,
    occupancy_byte_s,
)
from molink_scheduler.routing.ring_forecast import (
    ANSWER_TOKENS,
    RingPace,
    RingState,
    decoding_then,
)
from molink_sim.cache.cluster import LAYERS
from molink_sim.cache.trace import CacheRequest
from molink_sim.clock import Clock
from molink_sim.pools.decoding import DecodeNode
from molink_sim.pools.node import KV_TOKEN_BYTES, prefill_s, step_s
from molink_sim.pools.setting import NodeCache, PooledRequest, PoolLoad, PoolsOutcome, PoolsSetting


@dataclass(slots=True)
class _Prefilling:
    """A node that computes prompts."""

    cache: NodeCache
    free_s: float = 0.0
    line_free_s: float = 0.0


@dataclass(slots=True)
class Pools:
    """A run of two pools."""

    setting: PoolsSetting
    clock: Clock
    outcome: PoolsOutcome
    _prefill: list[_Prefilling] = field(init=False)
    _decode: list[DecodeNode] = field(init=False)
    _random: Random = field(init=False)
    _context_tokens: float = 0.0
    """Sum over requests that came of their context half through their answers."""
    _came: int = 0
    _answers_s: float = 0.0
    _answers: int = 0

    def __post_init__(self) -> None:
        of = self.setting
        self._prefill = [_Prefilling(NodeCache(of.capacity_tokens)) for _ in range(of.prefill)]
        self._decode = [DecodeNode(self.clock, self._ended) for _ in range(of.decode)]
        self._random = Random(f"pools {of.seed}")

    def prefill_s(self, tokens: int, cached_tokens: int) -> float:
        """Time to compute a prompt, see `NodePrices`."""
        return prefill_s(tokens, cached_tokens)

    def transfer_s(self, tokens: int) -> float:
        """Time to copy the KV of so many tokens, see `NodePrices`."""
        return tokens * KV_TOKEN_BYTES / self.setting.line_bytes_per_s

    def arrive(self, served: PooledRequest) -> None:
        """Send a request to two nodes, or refuse it."""
        request = served.request
        self._came += 1
        self._context_tokens += request.input_tokens + request.output_tokens / 2
        prefill = self._choose(request)
        loads = [node.load for node in self._decode]

        def tbt_s(node: int, after_s: float) -> float:
            return self._tbt_s(node, after_s, request)

        pair = conduct(prefill, loads, tbt_s, self._asked())
        if pair is None:
            served.refused = "arrival"
        else:
            self._compute(served, prefill, self._decode[pair.decode])

    def sample(self, _: None = None) -> None:
        """Note both pools' loads: the mean forecast of a first token for a prompt of mean length
        that nobody has cached is left out, what waits counts; and the mean step."""
        now, targets = self.clock.now, self.setting.targets
        queue_s = sum(max(0.0, node.free_s - now) for node in self._prefill) / len(self._prefill)
        step = sum(node.step_with(0) for node in self._decode) / len(self._decode)
        load = PoolLoad(now, queue_s / (targets.ttft_s or 1), step / (targets.tpot_s or 1))
        self.outcome.loads.append(load)

    # -- Conductor ------------------------------------------------------------------------------

    def _choose(self, request: CacheRequest) -> Prefill:
        now, policy = self.clock.now, self.setting.policy
        nodes = [
            PrefillNode(max(0.0, node.free_s - now), node.cache.cached_tokens(request))
            for node in self._prefill
        ]
        if policy in ("cache-aware", "kvcache-centric"):
            threshold = NO_COPIES if policy == "cache-aware" else self.setting.threshold
            return choose_prefill(nodes, request.input_tokens, self, threshold)
        if policy == "random":
            one = self._random.randrange(len(nodes))
        else:
            one = min(range(len(nodes)), key=lambda one: nodes[one].queue_s)
        own = nodes[one].cached_tokens
        return Prefill(one, nodes[one].queue_s + prefill_s(request.input_tokens, own), own)

    def _asked(self) -> Targets:
        """Targets that are asked for when a request comes."""
        match self.setting.admission:
            case AdmissionPolicy.ACCEPT:
                return NO_TARGETS
            case AdmissionPolicy.BASELINE:
                return Targets(self.setting.targets.ttft_s)
        return self.setting.targets

    def _tbt_s(self, node: int, after_s: float, request: CacheRequest) -> float:
        """Forecast of a newcomer's step: of that node now, or of the pool's mean then."""
        if self.setting.admission is not AdmissionPolicy.PREDICTED:
            return self._decode[node].step_with(request.input_tokens)
        rows = 1 + self._decoding_then(after_s) / len(self._decode)
        return step_s(rows, rows * self._context_tokens / self._came)

    def _decoding_then(self, after_s: float) -> float:
        now = self.clock.now
        ages_s = [now - one for node in self._decode for one in node.batch.begun_s.values()]
        begin_s = [one - now for node in self._decode for one in node.coming_s.values()]
        if not self.setting.ends_at_random:
            return decoding_at(after_s, ages_s, begin_s, self._answer_s)
        ahead = sum(one_s <= after_s for one_s in begin_s)
        pace = RingPace(1.0, 0.0, self._answer_s / ANSWER_TOKENS)
        return decoding_then(RingState(pace, waiting_requests=ahead, decoding=len(ages_s)), after_s)

    @property
    def _answer_s(self) -> float:
        """The paper's t_d."""
        if self.setting.answer_s is not None:
            return self.setting.answer_s
        if self._answers:
            return self._answers_s / self._answers
        return ANSWER_TOKENS * step_s(1, self._context_tokens / self._came)

    # -- the way of a request -------------------------------------------------------------------

    def _compute(self, served: PooledRequest, prefill: Prefill, decode: DecodeNode) -> None:
        now, node = self.clock.now, self._prefill[prefill.node]
        begins_s = max(now, node.free_s)
        if prefill.source is not None:
            source = self._prefill[prefill.source]
            served.copied_tokens = prefill.cached_tokens - node.cache.cached_tokens(served.request)
            lines_s = max(now, source.line_free_s, node.line_free_s)
            source.line_free_s = node.line_free_s = lines_s + self.transfer_s(served.copied_tokens)
            begins_s = max(begins_s, node.line_free_s)
        served.cached_tokens = prefill.cached_tokens
        node.free_s = begins_s + prefill_s(served.request.input_tokens, prefill.cached_tokens)
        node.cache.keep(served.request)
        decode.coming_s[served.number] = node.free_s
        self.clock.at(node.free_s, self._computed, (served, node, decode, begins_s))

    def _computed(self, job: tuple[PooledRequest, _Prefilling, DecodeNode, float]) -> None:
        """The first token is there; the rest of the KV follows."""
        served, node, decode, begun_s = job
        now, send_s = self.clock.now, self.transfer_s(served.request.input_tokens)
        served.first_s = now
        lines_s = max(begun_s, node.line_free_s, decode.line_free_s)
        there_s = max(now + send_s / LAYERS, lines_s + send_s)
        node.line_free_s = decode.line_free_s = there_s
        self.clock.at(there_s, self._join, (served, decode))
        size = KV_TOKEN_BYTES * served.request.input_tokens
        for layers, name in ((LAYERS, "occupied_byte_s"), (1, "whole_byte_s")):
            held = occupancy_byte_s(size, now - begun_s, send_s, layers)
            setattr(self.outcome, name, getattr(self.outcome, name) + held)

    def _join(self, job: tuple[PooledRequest, DecodeNode]) -> None:
        """The decode node checks its target again (the paper's step 4)."""
        served, node = job
        del node.coming_s[served.number]
        of, target_s = self.setting, self.setting.targets.tpot_s
        checks = of.checks_again and of.admission is not AdmissionPolicy.ACCEPT
        if (
            checks
            and target_s is not None
            and node.step_with(served.request.input_tokens) > target_s
        ):
            served.refused = "decode"
        else:
            node.join(served)

    def _ended(self, served: PooledRequest, took_s: float) -> None:
        self._answers += 1
        self._answers_s += took_s
