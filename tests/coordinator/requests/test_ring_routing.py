"""Requests go where their beginnings are cached, and are refused where their targets are missed."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from molink.coordinator.reports.cluster_report import pace_report, service_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.intake import Intake
from molink.coordinator.requests.serving_ring import ServingRing
from molink.errors import OverloadedError
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.serving.timeline import RequestTimeline
from molink.wire.frames import FinishReason, Sampled, Submit, TokenSample
from molink_scheduler.batch import BatchClass
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.request import SamplingParams
from molink_scheduler.routing.admission import Targets
from molink_scheduler.routing.pace_estimator import PaceEstimator
from molink_scheduler.routing.ring_choice import Routing
from molink_scheduler.routing.ring_forecast import LentStage, RingPace
from molink_scheduler.token_ids import token_bytes
from tests.coordinator.ring import ring_serving
from tests.coordinator.ring.ring_serving import FakeStage, Serving, going_on, until

CARD = ModelCard("m", 0, 100, 2048, (), None)
PACE = RingPace(prefill_tokens_per_s=100.0, first_token_s=0.1, tpot_alone_s=0.05, tpot_each_s=0.005)


class Rings(AsyncExitStack):
    """A service over rings whose tails say what a test says."""

    def __init__(self, count: int = 2, intake: Intake | None = None) -> None:
        super().__init__()
        self.count, self.rings, self.tasks = count, [], []
        self.service = ClusterService(CARD, service_report, intake or Intake())

    async def __aenter__(self) -> "Rings":
        self.push_async_callback(self.cancel)
        for number in range(self.count):
            serving = await self.enter_async_context(Serving())
            serving.client.whole_card = CARD
            serving.client.forecaster.pace = PaceEstimator(PACE)
            serving.stages.clear()  # Nobody asks for their layers.
            self.rings.append(serving)
            self.service.add(ServingRing(number, serving.client, 1.0))
        return self

    async def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def ask(self, prompt: list[int], **fields: object) -> int:
        """Send a request; the ring that it went to."""
        before = [self.submits(ring) for ring in self.rings]
        request = GenerationRequest(tuple(prompt), SamplingParams(max_tokens=2), **fields)
        task = asyncio.create_task(self.drain(request))
        self.tasks.append(task)
        await until(lambda: task.done() or [self.submits(ring) for ring in self.rings] != before)
        if task.done():
            await task
        return next(at for at, ring in enumerate(self.rings) if self.submits(ring) != before[at])

    async def drain(self, request: GenerationRequest) -> None:
        async for _ in self.service.generate(request):
            pass

    @staticmethod
    def submits(ring: Serving) -> int:
        return sum(isinstance(one, Submit) for one in ring.links.sent)

    async def answer(self, ring: int, cached_tokens: int = 0) -> None:
        """The last request of a ring gets both of its tokens."""
        serving = self.rings[ring]
        request_id = [one for one in serving.links.sent if isinstance(one, Submit)][-1]
        number, sent = request_id.request.request_id, serving.client.tokens_sent
        tokens = TokenSample(number, 7), TokenSample(number, 8, FinishReason.LENGTH)
        waits = ((number, 0.0, cached_tokens),)
        serving.links.events.put_nowait(Sampled(BatchClass.DECODE, 0, (), tokens, waits=waits))
        await until(lambda: serving.client.tokens_sent == sent + 2)
        await until(lambda: not serving.client.outstanding_tokens)


@pytest.fixture(autouse=True)
def caching_terms(monkeypatch):
    terms = SimpleNamespace(ring=RingTerms(4096, prefix_cache=True))
    monkeypatch.setattr(ring_serving, "TERMS", terms)


def prompt(beginning: int, own: int, tokens: int = 320) -> list[int]:
    return [beginning] * tokens + [own] * 10


async def test_the_next_turn_goes_to_the_ring_that_has_the_one_before():
    async with Rings(3) as rings:
        assert await rings.ask(prompt(1, 0)) == 0
        assert await rings.ask(prompt(2, 0)) == 1  # The first one is busy.
        await rings.answer(0)
        await rings.answer(1)
        assert await rings.ask(prompt(2, 3)) == 1
        assert await rings.ask(prompt(1, 3)) == 0


async def test_who_comes_meanwhile_waits_for_the_same_beginning():
    async with Rings() as rings:
        assert await rings.ask(prompt(1, 0)) == 0
        assert await rings.ask(prompt(2, 0, tokens=640)) == 1
        assert await rings.ask(prompt(1, 2)) == 0
        newcomer = GenerationRequest((3,) * 400, SamplingParams(1))
        assert rings.rings[0].client.state_for(newcomer, 1.0).waiting_tokens == 330 + 10


async def test_a_session_stays_on_its_ring_though_its_requests_begin_apart():
    """Of two idle rings anybody else takes the first one, a session of another key's too."""
    async with Rings() as rings:
        assert await rings.ask([7] * 30) == 0
        assert await rings.ask(prompt(2, 0), session="chat") == 1
        for key_id, prompt_token, ring in (("another's", 3, 0), (None, 4, 1)):
            for one in range(2):
                if rings.rings[one].client.outstanding_tokens:
                    await rings.answer(one)
                rings.rings[one].client.forecaster.pace = PaceEstimator(PACE)
            asked = prompt(prompt_token, 0)
            assert await rings.ask(asked, session="chat", key_id=key_id) == ring


async def test_a_ring_that_is_avoided_is_taken_where_there_is_no_other():
    async with Rings() as rings:
        assert await rings.ask(prompt(1, 0), avoids=frozenset({0})) == 1
        assert await rings.ask(prompt(1, 0), avoids=frozenset({1})) == 0
        assert await rings.ask(prompt(1, 1), avoids=frozenset({0, 1})) in (0, 1)


async def test_what_is_wished_for_is_asked_of_the_ring_and_told():
    wishes, timeline = ((320, 300),), RequestTimeline("m", 330, 2)
    async with Rings(1) as rings:
        await rings.ask(prompt(1, 0), wishes=wishes, timeline=timeline)
        assert rings.rings[0].links.sent[-1].request.wishes == wishes
        assert timeline.attempts[-1].wishes == wishes
        mirror = rings.rings[0].client.forecaster.mirror
        await rings.answer(0)
        await rings.ask(prompt(2, 0))
        await rings.answer(0)
        mirror.missed(320)
        assert mirror.cached_tokens("", token_bytes(prompt(1, 5))) == 320


async def test_of_a_ring_that_caches_nothing_nothing_is_told(monkeypatch):
    monkeypatch.setattr(ring_serving, "TERMS", SimpleNamespace(ring=RingTerms(4096)))
    timeline = RequestTimeline("m", 330, 2)
    async with Rings(1) as rings:
        await rings.ask(prompt(1, 0), wishes=((320, 300),), timeline=timeline)
        assert timeline.attempts[-1].wishes == ()


async def test_another_salt_shares_nothing():
    async with Rings() as rings:
        assert await rings.ask(prompt(1, 0), cache_salt="a") == 0
        assert await rings.ask(prompt(1, 2), cache_salt="b") == 1


async def test_a_ring_that_had_less_cached_than_thought_is_thought_to_have_less():
    async with Rings(1) as rings:
        for one in (9, 1):
            await rings.ask(prompt(one, 0))
            await rings.answer(0)
        mirror = rings.rings[0].client.forecaster.mirror
        assert mirror.cached_tokens("", token_bytes(prompt(9, 5))) == 320
        await rings.ask(prompt(1, 5))
        await rings.answer(0, cached_tokens=0)
        assert mirror.cached_tokens("", token_bytes(prompt(9, 5))) == 0
        assert mirror.cached_tokens("", token_bytes(prompt(1, 5))) == 320


async def test_what_a_ring_has_below_its_devices_memory_counts_as_cached(monkeypatch):
    terms = RingTerms(160, prefix_cache=True, tiers=CacheTiers(host_blocks=20, file_blocks=10))
    monkeypatch.setattr(ring_serving, "TERMS", SimpleNamespace(ring=terms))
    async with Rings(1) as rings:
        for one in (1, 2):
            await rings.ask(prompt(one, 0))
            await rings.answer(0)
        mirror = rings.rings[0].client.forecaster.mirror
        assert mirror.cached_tokens("", token_bytes(prompt(1, 5))) == 320
        assert mirror.blocks_max == 10 + 20 + 10


async def test_a_ring_that_lost_a_stage_has_nothing_cached():
    async with Rings() as rings:
        await rings.ask(prompt(1, 0))
        await rings.answer(0)
        client = rings.rings[0].client
        assert client.forecaster.mirror.tree.blocks
        client.pause()
        ring = SimpleNamespace(stages=[FakeStage("anna")], terms=client.ring.terms, epoch=2)
        client.resume(ring, going_on(), "a stage was lost")
        assert not client.forecaster.mirror.tree.blocks


async def test_by_load_nothing_counts_that_is_cached():
    async with Rings(2, Intake(routing=Routing.LOAD)) as rings:
        assert await rings.ask(prompt(1, 0)) == 0
        assert await rings.ask(prompt(1, 2)) == 1


async def test_who_would_wait_too_long_on_all_rings_is_told_when_to_come_again():
    async with Rings(2, Intake(targets=Targets(ttft_s=5.0))) as rings:
        assert [await rings.ask(prompt(one, 0)) for one in (1, 2)] == [0, 1]  # 3.4 s each.
        with pytest.raises(OverloadedError, match=r"the first token in 6\.7 s") as caught:
            await rings.ask(prompt(3, 0))
        assert caught.value.retry_s == pytest.approx(6.7 - 4.5)
        assert await rings.ask(prompt(3, 0), targets=Targets(ttft_s=60.0)) in (0, 1)


async def test_who_is_refused_for_those_before_is_told_so():
    """The forecast that it is told meets the target that it is told."""
    async with Rings(1, Intake(targets=Targets(ttft_s=5.0))) as rings:
        await rings.ask(prompt(1, 0, tokens=100))
        with pytest.raises(OverloadedError, match=r"5\.7 s, .*: send yours again later"):
            await rings.ask(prompt(2, 0, tokens=440))
        with pytest.raises(OverloadedError, match=r"4\.8 s, .*: others were refused, until one"):
            await rings.ask(prompt(3, 0, tokens=350))


async def test_a_higher_priority_waits_only_for_its_own():
    async with Rings(1, Intake(targets=Targets(ttft_s=5.0))) as rings:
        await rings.ask(prompt(1, 0), priority=3)
        with pytest.raises(OverloadedError):
            await rings.ask(prompt(2, 0), priority=3)
        assert await rings.ask(prompt(2, 0), priority=0) == 0


async def test_a_prompt_that_no_idle_ring_computes_in_time_is_told_so():
    async with Rings(1, Intake(targets=Targets(ttft_s=5.0))) as rings:
        with pytest.raises(OverloadedError, match="without other users too"):
            await rings.ask(prompt(1, 0, tokens=1000))


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        (Targets(ttft_s=0.2), r"is the first token in 0\.24 s, and wanted at most 0\.2 s"),
        (Targets(tpot_s=0.0495), r"is tokens every 50\.0 ms, and wanted at most 49\.5 ms"),
        (Targets(0.2, 0.04), r"in 0\.24 s and further ones every 50\.0 ms, and wanted"),
        (Targets(tbt_s=0.04), r"is 99 % of gaps between tokens within 50\.0 ms, .* most 40 ms"),
        (Targets(tbt_s=0.04), r"\(tbt_target_ms\): a round of the ring takes 50\.0 ms without"),
    ],
)
async def test_no_forecast_is_rounded_to_what_was_wanted(targets, told):
    async with Rings(1) as rings:
        with pytest.raises(OverloadedError, match=told):
            await rings.ask(prompt(1, 0, tokens=4), targets=targets)


async def test_nobody_is_refused_by_a_pace_that_nobody_knows():
    async with Rings(1, Intake(targets=Targets(ttft_s=0.001))) as rings:
        rings.rings[0].client.forecaster.pace = PaceEstimator()
        assert await rings.ask(prompt(1, 0)) == 0


async def test_what_was_forecast_stands_beside_what_came():
    async with Rings(1) as rings:
        await rings.ask(prompt(1, 0))
        await rings.answer(0)
        await until(lambda: rings.service.request_log.ended)
        (timeline,) = rings.service.request_log.ended
        report = timeline.report(0.0)
    assert report.forecast_ttft_s == pytest.approx(3.4)
    assert report.forecast_tpot_s == pytest.approx(0.05)
    assert report.ttft_s < 1
    assert report.forecast_tbt_s == report.forecast_tpot_s, "no gap has told"


def stutter(estimator: PaceEstimator) -> None:
    """Of a hundred gaps two are six times as long, of one answer alone."""
    for number in range(1000):
        estimator.round_came(0, PACE.tpot_alone_s * (6 if number % 100 < 2 else 1))


async def test_who_would_meet_long_gaps_is_refused_with_their_length():
    async with Rings(1, Intake(targets=Targets(tpot_s=0.1, tbt_s=0.12))) as rings:
        stutter(rings.rings[0].client.forecaster.pace)
        with pytest.raises(OverloadedError, match=r"99 % of gaps between tokens within 3\d\d"):
            await rings.ask(prompt(1, 0))
        assert await rings.ask(prompt(1, 0), targets=Targets(tbt_s=0.5)) == 0
        pace = pace_report(rings.rings[0].client)
    assert pace.tbt_p90_s == pytest.approx(0.05, rel=0.1)
    assert pace.tbt_p99_s == pytest.approx(0.3, rel=0.1)
    assert pace.tpot_s == pytest.approx(0.055, rel=0.05)


async def test_who_would_wait_for_lenders_at_each_token_goes_elsewhere_or_is_refused():
    """The first ring holds 50 tokens itself, and a step waits 60 ms for what lies at its lender."""
    async with Rings(2) as rings:
        forecaster = rings.rings[0].client.forecaster
        forecaster.lenders_changed((LentStage(50, 0.06),), ())
        wanted = Targets(tpot_s=0.1)
        assert await rings.ask(prompt(1, 0, tokens=80), targets=wanted) == 1
        assert await rings.ask(prompt(2, 0, tokens=8), targets=wanted) == 0
        rings.rings[1].client.forecaster.lenders_changed((LentStage(50, 0.06),), ())
        with pytest.raises(
            OverloadedError, match=r"tokens every 11\d\.\d ms, and wanted at most 100"
        ):
            await rings.ask(prompt(3, 0, tokens=80), targets=wanted)


async def test_a_prompt_whose_keys_lie_at_lenders_is_promised_its_first_token_later():
    """90 tokens of which 40 rows wait 1 ms for each of the keys there: 0.8 s more than alone."""
    lent = (LentStage(50, 0.0, 1e-3),)
    async with Rings(2) as rings:
        for ring in rings.rings:
            ring.client.forecaster.lenders_changed(lent, ())
        wanted = Targets(ttft_s=1.2)
        with pytest.raises(OverloadedError, match=r"first token\D* 1\.8 s"):
            await rings.ask(prompt(1, 0, tokens=80), targets=wanted)
        assert await rings.ask(prompt(2, 0, tokens=40), targets=wanted) == 0
        rings.rings[1].client.forecaster.lenders_changed((), ())
        assert await rings.ask(prompt(3, 0, tokens=80), targets=wanted) == 1


async def test_the_pace_that_is_learned_leaves_out_what_lenders_take():
    async with Rings(1) as rings:
        forecaster = rings.rings[0].client.forecaster
        live = SimpleNamespace(
            has_token=True, held_tokens=80, moved_at=0.0, begin=lambda line, now: None
        )
        for turn in range(400):
            forecaster.lenders_changed((LentStage(50, 0.06),), [live])
            forecaster.round_came(live, 1, 1, 0.11 * (turn + 1))
        pace = pace_report(rings.rings[0].client)
    assert forecaster.pace.waits_s == 0.06
    assert forecaster.pace.pace.tpot_alone_s == pytest.approx(0.05, rel=0.01)
    assert pace.tpot_s == pytest.approx(0.11, rel=0.01), "users get the whole"


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (Targets(tbt_s=0.04), "40 ms between tokens is below the round of every ring, 50.0 ms"),
        (Targets(tpot_s=0.001), "1 ms between tokens"),
        (Targets(tpot_s=0.06, tbt_s=0.06), ""),
        (Targets(ttft_s=0.001), ""),
    ],
)
async def test_targets_that_refuse_everybody_are_trouble(targets, says):
    async with Rings(2, Intake(targets=targets)) as rings:
        told = rings.service.intake.trouble(rings.service.rings)
        assert says in told and bool(told) == bool(says)
        rings.rings[0].client.forecaster.pace = PaceEstimator()
        assert not rings.service.intake.trouble(rings.service.rings), "one is not known"


async def test_the_goodput_counts_whole_answers_within_all_targets():
    async with Rings(1, Intake(targets=Targets(ttft_s=60.0, tbt_s=50.0))) as rings:
        assert rings.service.request_log.goodput.report is None
        await rings.ask(prompt(1, 0))
        await rings.answer(0)
        with pytest.raises(OverloadedError):
            await rings.ask(prompt(1, 0), targets=Targets(tbt_s=0.01))
        await until(lambda: len(rings.service.request_log.ended) == 2)
        goodput = rings.service.request_log.goodput.report
    assert (goodput.requests, goodput.met, goodput.refused) == (2, 1, 1)
