"""Interface of whatever serves a model to the API: a small protocol, so that its tests need no
ring.

The coordinator implements it over the ring.
"""

import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.serving.answer_log import AnswerLog
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.serving.request_log import RequestLog
from molink.serving.timeline import RequestTimeline
from molink.serving.token_events import TokenEvent
from molink_scheduler.kv.owners import owned_salt
from molink_scheduler.request import SamplingParams, WishedTokens
from molink_scheduler.routing.admission import NO_TARGETS, Targets
from molink_scheduler.token_ids import token_bytes

HASH_CHARS = 31
"""Characters of a hashed group or owner: heads take CACHE_SALT_CHARS_MAX of both, and a mark."""


def _hashed(named: str) -> str:
    return hashlib.sha256(named.encode()).hexdigest()[:HASH_CHARS]


def cache_salt(key_id: str | None, chosen: str | None = None, *, is_shared: bool = False) -> str:
    """Salt of the cached KV that a request may share: as its sender has `chosen`, else that of the
    API key; nobody learns it from another's. Without a key, or where all share, empty."""
    if chosen:
        return _hashed(f"salt:{chosen}")
    if key_id is None or is_shared:
        return ""
    return _hashed(f"key:{key_id}")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. `sampling.stop_token_ids` already holds the end-of-sequence
    tokens, if wanted."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    key_id: str | None = None
    """Id of the API key that asks: what users share may depend on it. None: without a key."""
    priority: int = 0
    """Priority where requests wait for room: lower goes first."""
    deadline_at: float | None = None
    """When its answer ends at the latest, by the event loop's clock; None: it has none."""
    cache_salt: str = ""
    """Salt of cached KV: only requests of one salt share it."""
    wishes: WishedTokens = ()
    """First tokens of the prompt that are to stay cached, and for how many seconds."""
    session: str = ""
    """Name that its sender gives all requests of a session; empty: none."""
    timeline: RequestTimeline | None = field(default=None, compare=False)
    """Timeline in which the service notes what becomes of it; None: the service makes one."""
    log: AnswerLog | None = field(default=None, compare=False)
    """Log that keeps the tokens on disk; None: they are not kept."""
    targets: Targets = NO_TARGETS
    """Targets for the first token and those after it, or the request is refused; the operator's,
    where they say nothing."""
    prediction: tuple[int, ...] = ()
    """Tokens that the answer is expected to repeat; they change no answer."""
    handed: tuple[int, int] | None = None
    """Epoch of the ring that has computed the prompt for the one that answers, and its number of
    the request there; None: the ring that answers computes it."""
    avoids: frozenset[int] = frozenset()
    """Numbers of the rings that are not to compute it while there are others."""
    packed: bytes = field(default=b"", compare=False, repr=False)
    """Prompt as rings take it and directories of cached prefixes compare it; packed once, when the
    request is made."""

    def __post_init__(self) -> None:
        if not self.packed:
            object.__setattr__(self, "packed", token_bytes(self.prompt_token_ids))

    @property
    def named_session(self) -> str:
        """Its session as rings are found by it, apart from others' of the same name; empty:
        none."""
        return _hashed(f"session:{self.owned_salt}:{self.session}") if self.session else ""

    @property
    def owned_salt(self) -> str:
        """Salt as heads have it, which also says whose share of the cache it takes."""
        owner = _hashed(f"owner:{self.key_id}") if self.key_id is not None else ""
        return owned_salt(self.cache_salt, owner)


class Generator(Protocol):
    """Source of answers of one model."""

    @property
    def card(self) -> ModelCard:
        """Card of the model that is served."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """Stream one sequence; closing the generator cancels it.

        Raises RingError from the iteration when the ring cannot go on, InvalidRequestError when the
        request does not fit (prompt plus max_tokens over `card.model_len_max`), DeadlineError when
        its deadline comes before its first token.
        """


class GenerationService(Generator, Protocol):
    """Service that generates text with one model, and knows what becomes of requests."""

    @property
    def request_log(self) -> RequestLog:
        """Timelines of the requests that are live, and of the last that have ended."""

    @property
    def events(self) -> EventLedger:
        """Events of the cluster."""

    @property
    def watch(self) -> ClusterWatch:
        """Watch over what stands out in the cluster."""

    def cluster(self) -> ClusterReport:
        """Report on rings and nodes, as they are now."""

    @property
    def unready_reason(self) -> str | None:
        """Why requests are not accepted now, None when they are (GET /health)."""

    async def until_taken(self) -> None:
        """Wait until a request may be asked; a service that is away for a moment may let it wait.
        Raises RingError when nothing can be served, OverloadedError when too many wait."""
