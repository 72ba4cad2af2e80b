"""One ring that serves a trace: one prompt at a time, answers side by side, cached blocks.

Between two events everything goes on at a constant speed: the prompt at the front, and all answers
by one token a round. An event (a prompt through the slowest part, its first token, an answer's end)
changes who shares the ring, and so the speeds. Answers are counted in rounds: each ends when the
ring's count of rounds reaches its own, so an event costs the logarithm of their number.

Blocks are the trace's, in the prefix tree that a head runs. A request takes room for its prompt and
its answer when its prompt begins, where a head forecasts how far answers grow; what is cached and
unused is dropped for it, and where that is not enough it waits. What an answer has filled is cached
when it ends, as far as the trace tells.
"""

import bisect
import heapq
from collections import deque
from dataclasses import dataclass, field, replace

from molink_scheduler.kv.prefix_tree import PrefixTree
from molink_scheduler.prompt_order import PromptOrder
from molink_scheduler.routing.admission import NO_TARGETS, AdmissionPolicy, RingAdmission, Targets
from molink_scheduler.routing.pace_estimator import PaceEstimator
from molink_scheduler.routing.ring_forecast import RingPace, RingState
from molink_scheduler.token_ids import TOKEN_BYTES
from molink_sim.cache.ring_cost import IDLE, DecodeLoad, PrefillWork, RingCost
from molink_sim.cache.trace import BLOCK_TOKENS, CacheRequest

SALT = ""
"""All requests of a trace share with each other."""

NEVER = float("inf")

PLANNED_TOKENS, PLANNED_ANSWERS = 4096, 8
"""Length of a prompt, and how many answers, at which a ring's pace is planned."""

MOMENT_S = 1e-9
"""Seconds ahead that count as now: times of an hour's trace cannot be told apart more finely."""


@dataclass(slots=True)
class ServedPrompt:
    """Request on a ring, and what came of it."""

    request: CacheRequest
    met: RingState
    """The ring as it was when it came."""
    transfer_s: float = 0.0
    """Seconds until blocks that it begins with are copied here."""
    refused: bool = False
    """Whether it was refused, before its prompt was computed or after."""
    cached_blocks: int = 0
    """Blocks of its prompt that were cached when it began."""
    work: PrefillWork = field(default_factory=lambda: PrefillWork(0.0, 0.0))
    first_token_s: float | None = None
    ended_s: float | None = None
    pinned: int | None = None
    """Node of the tree that it holds."""
    place: int = 0
    """Place among those that wait."""
    behind_s: float = 0.0
    """How much later than the slowest part the ring's end was free of the prompt before it."""

    @property
    def cached_tokens(self) -> int:
        """Cached tokens of its prompt; the last one is computed in any case."""
        return min(self.cached_blocks * BLOCK_TOKENS, self.request.input_tokens - 1)

    @property
    def expected_tokens(self) -> int:
        """Tokens of its prompt to be computed, as far as was known when it came."""
        return self.request.input_tokens - self.met.cached_tokens

    @property
    def computed_tokens(self) -> int:
        """Tokens of its prompt that were computed; 0 if none was."""
        return 0 if self.first_token_s is None else self.computing_tokens

    @property
    def computing_tokens(self) -> int:
        """Tokens of its prompt that were not cached when it began."""
        return self.request.input_tokens - self.cached_tokens

    @property
    def ttft_s(self) -> float:
        """Time to its first token; infinite while there is none."""
        return NEVER if self.first_token_s is None else self.first_token_s - self.request.at_s

    @property
    def tpot_s(self) -> float:
        """Mean time between its tokens; 0 if it has one, infinite before its end."""
        if self.ended_s is None or self.first_token_s is None:
            return NEVER
        return (self.ended_s - self.first_token_s) / max(1, self.request.output_tokens - 1)


@dataclass(slots=True)
class CacheRing:
    """A ring with its queue, its answers and its cache."""

    cost: RingCost
    order: str = "lru"
    """Order of eviction."""
    admission: AdmissionPolicy = AdmissionPolicy.ACCEPT
    targets: Targets = NO_TARGETS
    prompts: PromptOrder = field(default_factory=PromptOrder)
    now_s: float = 0.0
    tree: PrefixTree = field(init=False)
    ring_admission: RingAdmission = field(init=False)
    pace: PaceEstimator = field(init=False)
    waiting: list[ServedPrompt] = field(init=False, default_factory=list)
    """Requests that wait, in order of their places."""
    prompt: ServedPrompt | None = field(init=False, default=None)
    """Request whose spans pass the slowest part now."""
    left: float = field(init=False, default=0.0)
    """Share of that prompt's work that is left."""
    load: DecodeLoad = field(init=False, default=IDLE)
    outstanding_tokens: int = field(init=False, default=0)
    """Prompts and answers of all that have not ended. The length of an answer is the trace's, which
    no coordinator knows: `load` is compared with at its best."""
    _arriving: deque[tuple[float, ServedPrompt]] = field(init=False, default_factory=deque)
    """Prompts whose last span is on its way round, with the times of their first tokens."""
    _last_arrives_s: float = field(init=False, default=0.0)
    """Time of the first token of the newest of them, or of the last that there was."""
    _answers: list[tuple[float, int, ServedPrompt]] = field(init=False, default_factory=list)
    """Heap by the round in which they end."""
    _rounds: float = field(init=False, default=0.0)
    _count: int = field(init=False, default=0)
    _context_tokens: float = field(init=False, default=0.0)
    """Contexts of all answers, each with half of what it generates."""
    _copying_s: float = field(init=False, default=0.0)
    """Seconds of copying blocks that the next request brings along."""
    _private_blocks: int = field(init=False, default=0)
    """Held by requests and not cached."""

    def __post_init__(self) -> None:
        self.tree = PrefixTree(self.order, block_tokens=1)
        self.ring_admission = RingAdmission(self.admission)
        self.pace = PaceEstimator(planned_pace(self.cost))

    @property
    def capacity_blocks(self) -> int:
        """Room for whole blocks."""
        return self.cost.capacity_tokens // BLOCK_TOKENS

    @property
    def answers(self) -> int:
        """How many get tokens now."""
        return len(self._answers)

    @property
    def context_tokens(self) -> float:
        """Mean of those that get tokens now."""
        return self._context_tokens / max(1, len(self._answers))

    def cached_tokens(self, request: CacheRequest) -> int:
        """Cached tokens of a prompt, now; its last token is computed in any case."""
        blocks = self.tree.find(SALT, request.blocks).blocks
        return min(blocks * BLOCK_TOKENS, request.input_tokens - 1)

    def state(self, request: CacheRequest) -> RingState:
        """The ring as a request sees it that comes now."""
        left = round(self.left * self.prompt.computing_tokens) if self.prompt else 0
        cached = self.cached_tokens(request)
        place = self.prompts.place(request.input_tokens - cached)
        ahead = self.waiting[: bisect.bisect_right(self.waiting, place, key=_place)]
        return RingState(
            pace=self.pace.pace,
            waiting_tokens=sum(one.expected_tokens for one in ahead) + left,
            waiting_requests=len(ahead) + (self.prompt is not None) + len(self._arriving),
            decoding=self.answers,
            cached_tokens=cached,
            answer_tokens=self.pace.answer_tokens,
            outstanding_tokens=self.outstanding_tokens,
        )

    def submit(self, request: CacheRequest, met: RingState) -> ServedPrompt:
        """Take a request that comes now and met the ring in this state, or refuse it; `advance` has
        been called for this moment."""
        served, self._copying_s = ServedPrompt(request, met, self._copying_s), 0.0
        if not self.ring_admission.decide(met, request.input_tokens, self.targets).admitted:
            served.refused = True
            return served
        served.place = self.prompts.join(served.expected_tokens)
        bisect.insort(self.waiting, served, key=_place)
        self.outstanding_tokens += request.input_tokens + request.output_tokens
        self._begin()
        self._share()
        return served

    @property
    def wait_s(self) -> float:
        """Seconds until the slowest part is free of all prompts that are here, at the present
        speed."""
        now_s = self._prompt_left_s(self.prompt) if self.prompt else 0.0
        return now_s + sum(
            served.transfer_s
            + self.load.prefill_s(
                self.cost.prefill(served.met.cached_tokens, served.request.input_tokens)
            )
            for served in self.waiting
        )

    def receive(self, blocks: bytes, copying_s: float) -> None:
        """Cache blocks that are copied from elsewhere with the request that is submitted next."""
        self._cache(blocks)
        self._copying_s = copying_s

    def _cache(self, blocks: bytes) -> None:
        missing = len(blocks) // TOKEN_BYTES - self.tree.find(SALT, blocks).blocks
        free = self.capacity_blocks - self.tree.blocks - self._private_blocks
        if missing <= free + self.tree.blocks_droppable:
            self.tree.drop(max(0, missing - free))
            self.tree.unpin(self.tree.extend(SALT, blocks)[0])

    def next_s(self) -> float:
        """Time at which something happens next by itself."""
        found = self._arriving[0][0] if self._arriving else NEVER
        if self.prompt is not None:
            found = min(found, self.now_s + self._prompt_left_s(self.prompt))
        if self._answers:
            found = min(found, self.now_s + self._answer_left_s())
        return max(found, self.now_s)

    def _prompt_left_s(self, prompt: ServedPrompt) -> float:
        return self.left * self.load.prefill_s(prompt.work)

    def _answer_left_s(self) -> float:
        """Seconds left of the answer that ends first."""
        return (self._answers[0][0] - self._rounds) * self.load.tpot_s

    def advance(self, until_s: float) -> None:
        """Have prompts and answers go on until then, event by event."""
        while (at_s := self.next_s()) <= until_s:
            self._pass(at_s)
            self._happen()
            self._share()
        self._pass(until_s)

    def _pass(self, at_s: float) -> None:
        passed_s, self.now_s = at_s - self.now_s, at_s
        if self.prompt is not None and passed_s > 0:
            whole_s = self.load.prefill_s(self.prompt.work)
            self.left = max(0.0, self.left - passed_s / whole_s) if whole_s > 0 else 0.0
        if self._answers:
            self._rounds += passed_s / self.load.tpot_s

    def _happen(self) -> None:
        """Everything whose time has come: at least one thing, however times are rounded."""
        while self._answers and self._answer_left_s() <= MOMENT_S:
            self._end(heapq.heappop(self._answers)[2])
        if self.prompt is not None and self._prompt_left_s(self.prompt) <= MOMENT_S:
            self._computed(self.prompt)
        while self._arriving and self._arriving[0][0] <= self.now_s:
            self._answer(self._arriving.popleft()[1])
        self._begin()

    def _share(self) -> None:
        """Set all speeds anew: the requests on the ring have changed."""
        self.load = self.cost.decode(
            self.answers, self.context_tokens, beside_prefill=self.prompt is not None
        )
        if self.answers:
            self.pace.token_came(self.answers - 1, self.load.tpot_s)

    # -- one request ----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the next prompt, if there is room for it."""
        if self.prompt is None and self.waiting and self._take_room(self.waiting[0]):
            self.prompt, self.left = self.waiting.pop(0), 1.0
            self.prompt.behind_s = self._last_arrives_s - self.now_s

    def _take_room(self, served: ServedPrompt) -> bool:
        request = served.request
        prefix = self.tree.find(SALT, request.blocks)
        own = request.block_count - prefix.blocks + _answer_blocks(request)
        free = self.capacity_blocks - self.tree.blocks - self._private_blocks
        droppable = self.tree.blocks_droppable - self.tree.unheld_blocks(prefix)
        if own > free + droppable:
            return False
        served.pinned = self.tree.pin(prefix) if prefix.blocks else None
        self.tree.drop(max(0, own - free))
        self._private_blocks += own
        served.cached_blocks = prefix.blocks
        work = self.cost.prefill(served.cached_tokens, request.input_tokens)
        served.work = replace(work, stage_s=work.stage_s + served.transfer_s)
        return True

    def _computed(self, served: ServedPrompt) -> None:
        """A prompt is through the slowest part: its blocks are cached from now on."""
        request, self.prompt = served.request, None
        self._private_blocks -= request.block_count - served.cached_blocks
        served.pinned, _ = self.tree.extend(SALT, request.blocks, served.pinned)
        self._last_arrives_s = self.now_s + max(served.work.fill_s, served.behind_s)
        self._arriving.append((self._last_arrives_s, served))

    def _answer(self, served: ServedPrompt) -> None:
        served.first_token_s = self.now_s
        request = served.request
        self.pace.first_token_came(served.met, request.input_tokens, served.ttft_s)
        served.refused = not self.ring_admission.goes_on(self.state(request), self.targets)
        rounds = request.output_tokens - 1
        if served.refused or not rounds or not self.cost.answers_here:
            self._release(served)
            return
        self._count += 1
        heapq.heappush(self._answers, (self._rounds + rounds, self._count, served))
        self._context_tokens += _context(request)

    def _end(self, served: ServedPrompt) -> None:
        self._context_tokens -= _context(served.request)
        self.pace.answer_ended(served.request.output_tokens)
        self._release(served)

    def _release(self, served: ServedPrompt) -> None:
        served.ended_s = self.now_s
        assert served.pinned is not None, "it was pinned when its prompt was computed"
        self._private_blocks -= _answer_blocks(served.request)
        if served.request.answer and not served.refused and self.cost.answers_here:
            self._cache(served.request.turn)
        self.tree.unpin(served.pinned)
        served.pinned = None
        self.outstanding_tokens -= served.request.input_tokens + served.request.output_tokens


def _place(served: ServedPrompt) -> int:
    return served.place


def _answer_blocks(request: CacheRequest) -> int:
    """Blocks beside the prompt's that it comes to fill."""
    total = -(-(request.input_tokens + request.output_tokens) // BLOCK_TOKENS)
    return total - request.block_count


def _context(request: CacheRequest) -> float:
    return request.input_tokens + request.output_tokens / 2


def planned_pace(cost: RingCost) -> RingPace:
    """Pace that a plan would forecast of a ring; answers correct it."""
    prompt = cost.prefill(0, PLANNED_TOKENS)
    alone, busy = (
        cost.decode(answers, PLANNED_TOKENS, beside_prefill=False).tpot_s
        for answers in (1, PLANNED_ANSWERS)
    )
    each_s = max(0.0, busy - alone) / (PLANNED_ANSWERS - 1)
    tokens_per_s = PLANNED_TOKENS / IDLE.prefill_s(prompt)
    return RingPace(tokens_per_s, prompt.fill_s, max(alone, MOMENT_S), each_s)
