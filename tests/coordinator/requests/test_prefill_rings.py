"""A prompt is computed by the pair of the ring that answers, or by that ring itself."""

import asyncio
from types import SimpleNamespace

import pytest

from molink.coordinator.requests.intake import Intake
from molink.coordinator.requests.prefill_rings import RingRoles
from molink.errors import RingError
from molink.wire.frames import Cancel, ChangeCache, FinishReason, Submit, TokenSample
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.changes import TakeBlocks
from molink_scheduler.routing.roles import Role
from tests.coordinator.requests.test_ring_routing import Rings
from tests.coordinator.ring import ring_serving
from tests.coordinator.ring.ring_serving import FakeStage, until

PREFILL, DECODE = 0, 1
PROMPT = [*range(3, 99)] * 2
EPOCH = 1


@pytest.fixture(autouse=True)
def _caching_terms(monkeypatch):
    terms = SimpleNamespace(ring=RingTerms(4096, prefix_cache=True))
    monkeypatch.setattr(ring_serving, "TERMS", terms)


class Paired(Rings):
    """A prefill ring and a decode ring."""

    def __init__(self, roles=(Role.PREFILL, Role.DECODE)) -> None:
        nodes = tuple(frozenset({f"node {place}"}) for place in range(len(roles)))
        super().__init__(len(roles), Intake(roles=RingRoles.of_nodes(roles, nodes)))

    async def __aenter__(self) -> "Paired":
        await super().__aenter__()
        for place, serving in enumerate(self.rings):
            stage = FakeStage(f"stage {place}")
            stage.node, stage.layers = SimpleNamespace(node_id=f"node {place}"), (0, 2)
            serving.stages.append(stage)
        return self

    def sent(self, ring, kind):
        return [one for one in self.rings[ring].links.sent if isinstance(one, kind)]

    def offers(self):
        return [one.change for one in self.sent(DECODE, ChangeCache)]

    async def computed(self) -> None:
        """The prefill ring draws its one token."""
        submit = self.sent(PREFILL, Submit)[-1]
        token = TokenSample(submit.request.request_id, 5, FinishReason.LENGTH)
        self.rings[PREFILL].links.tell(token)

    async def given(self) -> None:
        """The request has come to the decode ring."""
        await until_soon(lambda: self.submits(self.rings[DECODE]))


async def until_soon(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - it happens by itself
            await asyncio.sleep(0.01)


async def test_the_pair_computes_the_prompt_and_the_head_hears_of_it_first():
    async with Paired() as rings:
        assert await rings.ask(PROMPT) == PREFILL
        assert not rings.submits(rings.rings[DECODE]), "the prompt is not computed yet"
        (submit,) = rings.sent(PREFILL, Submit)
        assert submit.request.sampling.max_tokens == 1
        await rings.computed()
        await rings.given()
        (number,) = [one.request.request_id for one in rings.sent(DECODE, Submit)]
        assert rings.offers() == [
            TakeBlocks(number, ((0, 12),), (EPOCH, submit.request.request_id))
        ]
        kinds = [type(one) for one in rings.rings[DECODE].links.sent]
        assert kinds.index(ChangeCache) < kinds.index(Submit)
        (sent,) = rings.sent(DECODE, Submit)
        assert sent.request.sampling.max_tokens == 2 and not sent.request.output


@pytest.mark.parametrize("prompt", [PROMPT[:63], [5]])
async def test_a_short_prompt_is_computed_where_it_is_answered(prompt):
    async with Paired() as rings:
        assert await rings.ask(prompt) == DECODE
        assert not rings.offers()


async def test_what_is_cached_there_is_not_computed_elsewhere():
    async with Paired() as rings:
        await rings.ask(PROMPT)
        await rings.computed()
        await rings.given()
        await rings.answer(DECODE)
        assert await rings.ask([*PROMPT, 7, 7, 7]) == DECODE


async def test_what_only_the_pair_has_cached_is_computed_again_there():
    """In a group of its own: else none of it would be handed over."""
    async with Paired() as rings:
        await rings.ask(PROMPT, cache_salt="mine")
        await rings.computed()
        await rings.given()
        await rings.answer(DECODE)
        rings.rings[DECODE].client.forecaster.cache_lost()
        await rings.ask(PROMPT, cache_salt="mine")
        first, again = (one.request.cache_salt for one in rings.sent(PREFILL, Submit))
        assert first == "mine" and again not in ("", "mine")


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_pair_that_is_lost_in_the_middle_is_not_waited_for(is_paused):
    async with Paired() as rings:
        await rings.ask(PROMPT)
        client = rings.rings[PREFILL].client
        client.pause() if is_paused else client.end("It is gone.")
        await rings.given()
        assert not rings.offers()
        assert client.requests_live == 0 and not rings.sent(PREFILL, Cancel)


async def test_a_pair_that_does_not_stand_is_not_asked():
    async with Paired() as rings:
        rings.rings[PREFILL].client.pause()
        assert await rings.ask(PROMPT) == DECODE


async def test_a_user_who_goes_away_ends_the_prompt():
    async with Paired() as rings:
        await rings.ask(PROMPT)
        rings.tasks[0].cancel()
        await until(lambda: rings.sent(PREFILL, Cancel))
        assert not rings.submits(rings.rings[DECODE])


async def test_a_prefill_ring_answers_where_no_other_does():
    async with Paired() as rings:
        decode = rings.rings[DECODE].client
        decode.unready_reason = "It is being built."
        assert await rings.ask(PROMPT) == PREFILL
        (submit,) = rings.sent(PREFILL, Submit)
        assert submit.request.sampling.max_tokens == 2


async def test_a_ring_that_fails_the_prompt_fails_nobody():
    async with Paired() as rings:
        await rings.ask(PROMPT)
        client = rings.rings[PREFILL].client
        (live,) = client._live.values()
        live.enqueue(RingError("It has left the request lying."))
        await rings.given()
        assert not rings.offers()


async def test_of_two_that_compute_prompts_the_one_with_less_to_do_is_asked():
    roles = Role.PREFILL, Role.DECODE, Role.PREFILL
    async with Paired(roles) as rings:
        assert {await rings.ask(PROMPT), await rings.ask(PROMPT[::-1])} == {0, 2}
