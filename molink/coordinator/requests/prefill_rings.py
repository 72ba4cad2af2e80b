"""Prompts that one ring computes for another, which answers (`routing.roles`).

A request is given to a ring that answers; where that has a pair, the pair computes the prompt
first, as a request of one token whose answer nobody reads. Its stages hand KV over meanwhile, each
to its own pair. Then the request goes to the ring that answers, with word of what was handed over.
What of it has not come, for whatever reason, that ring computes: so nothing that happens to the
pair fails a request, or changes a token of it.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from molink.checkpoint.checkpoint import open_checkpoint
from molink.checkpoint.mixers import NO_STATE
from molink.checkpoint.stage_size import stage_size_of
from molink.coordinator.requests.serving_ring import ServingRing
from molink.errors import MolinkError, UserError
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink_scheduler.request import SamplingParams
from molink_scheduler.routing.roles import Role, is_handed_over, pairs_of

LOOK_S = 0.1
"""Between two looks whether the ring that computes a prompt still stands."""

SALT_BYTES = 8
"""Bytes of a cache salt that no other request has, so that the pair computes the whole prompt
again: only computed blocks are handed over, never blocks that were cached before."""

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class RingRoles:
    """Roles of a cluster's rings, by the places that they have among them; a ring without a place
    does all."""

    roles: tuple[Role, ...] = ()
    place: Callable[[ServingRing], int | None] = lambda ring: None
    """The place of a ring; None: it has none, or none now."""

    @classmethod
    def of_nodes(cls, roles: tuple[Role, ...], nodes: Sequence[frozenset[str]]) -> "RingRoles":
        """Roles of rings that keep them, by the ids of each ring's nodes."""

        def place(ring: ServingRing) -> int | None:
            held = {stage.node.node_id for stage in ring.client.ring.stages}
            return next((place for place, ids in enumerate(nodes) if ids & held), None)

        return cls(roles, place)

    def role(self, ring: ServingRing) -> Role:
        """The role of a ring."""
        place = self.place(ring)
        return Role.BOTH if place is None else self.roles[place]

    def answering(self, rings: Sequence[ServingRing]) -> list[ServingRing]:
        """Those of some rings that answer; where none does, all of them do."""
        return [ring for ring in rings if self.role(ring).answers] or list(rings)

    def prefill_ring(
        self, decode_ring: ServingRing, rings: Sequence[ServingRing]
    ) -> ServingRing | None:
        """The ring that computes prompts for this one, of several the one with the least to do;
        None: there is none that stands."""
        place = self.place(decode_ring)
        if place is None:
            return None
        pairs = pairs_of(self.roles)
        prefill_rings = [
            ring
            for ring in rings
            if ring is not decode_ring
            and ring.is_open
            and not ring.client.is_paused
            and (own := self.place(ring)) is not None
            and pairs.get(own) == place
        ]
        return min(prefill_rings, key=lambda ring: ring.client.outstanding_tokens, default=None)

    async def prefilled(
        self, decode_ring: ServingRing, request: GenerationRequest, rings: Sequence[ServingRing]
    ) -> GenerationRequest:
        """The request, with word of what was handed over for it to the ring that answers, once its
        prompt is computed; as it is where nothing was."""
        prefill_ring = self.prefill_ring(decode_ring, rings)
        if prefill_ring is None:
            return request
        cached = _cached_tokens(decode_ring, request)
        if not _may_be_handed(request, cached):
            return request
        timeline = RequestTimeline("", len(request.prompt_token_ids), 1, request.key_id)
        timeline.submitted(prefill_ring.number, prefill_ring.stages, time.monotonic())
        epoch = prefill_ring.client.ring.epoch
        salt = request.cache_salt
        if _cached_tokens(prefill_ring, request) > cached:
            salt = secrets.token_hex(SALT_BYTES)
        if not await _is_computed(prefill_ring, _prompt_of(request, salt, timeline)):
            return request
        return replace(request, handed=(epoch, timeline.attempts[-1].number))


def check_roles(roles: Sequence[Role], path: str, splits: Iterable[tuple[int, int]]) -> None:
    """Refuse roles of rings whose stages have these layers of the model at a path, where no ring
    can take over what another has computed. Raises UserError."""
    if len(roles) == 1:
        return
    checkpoint = open_checkpoint(path)
    sizes = [stage_size_of(checkpoint, layers, False) for layers in splits]
    if any(size is not None and size.state != NO_STATE for size in sizes):
        raise UserError(
            f"--roles hands over KV, and layers of {checkpoint.name} keep states or windows, which "
            "no other ring can go on from: leave it out."
        )


def _cached_tokens(ring: ServingRing, request: GenerationRequest) -> int:
    return ring.client.state_for(request, ring.tokens_per_s).cached_tokens


def _may_be_handed(request: GenerationRequest, cached_tokens: int) -> bool:
    """Whether enough of the prompt is to be computed, and is cached like others."""
    sampling = request.sampling
    if sampling.prompt_logprobs is not None or sampling.kv_budget < 1.0:
        return False
    return is_handed_over(len(request.prompt_token_ids), cached_tokens)


def _prompt_of(
    request: GenerationRequest, salt: str, timeline: RequestTimeline
) -> GenerationRequest:
    return GenerationRequest(
        request.prompt_token_ids,
        ONE_TOKEN,
        request.key_id,
        request.priority,
        cache_salt=salt,
        timeline=timeline,
        packed=request.packed,
    )


async def _is_computed(prefill_ring: ServingRing, asked: GenerationRequest) -> bool:
    """Wait until a ring has computed a prompt; False: it will not, or not before it stands
    again."""
    computing = asyncio.create_task(_compute(prefill_ring, asked))
    try:
        while not computing.done():
            await asyncio.wait((computing,), timeout=LOOK_S)
            if prefill_ring.client.is_paused or prefill_ring.client.unready_reason is not None:
                return False
        return computing.result()
    finally:
        computing.cancel()
        await asyncio.wait((computing,))


async def _compute(prefill_ring: ServingRing, asked: GenerationRequest) -> bool:
    try:
        async with aclosing(prefill_ring.client.generate(asked)) as events:
            async for _ in events:
                pass
    except MolinkError:
        return False
    return True
