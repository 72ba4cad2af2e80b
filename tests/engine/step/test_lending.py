"""A stage with room for a part of its requests' KV, the rest at a lender: the same tokens."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from molink.engine.device.elements import elements_of, tensor_of
from molink.engine.layers.held_blocks import HeldBlocks
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.ragged_batch import RaggedSpan
from molink.engine.step import lending
from molink.engine.step.stage import StageExecutor
from molink.engine_protocol.lender import LentKv, LentSpan
from molink.engine_protocol.values import BlockBytes
from molink.errors import LenderLostError, UnsupportedModelError
from molink.stage_protocol.health import LenderHealth
from molink.wire.elements import Elements, Floats
from molink_scheduler.batch import Release
from molink_scheduler.request import SamplingParams
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import LAYERS, generate, save_tiny
from tests.sweeps import swept

PLACES = 64

BF16_LOGIT_ERROR = 2 * 2**-6
"""Of logits up to 4: two steps of bf16 there, whose mantissa has 8 bits."""


class NearLender:
    """Lender in the stage's own process."""

    def __init__(self) -> None:
        self.pushed = self.pulled = 0
        self.is_lost = False
        self.kept: list[int] = []

    def hold(self, kv: LentKv, places: int) -> None:
        self.held = HeldBlocks.of(kv, places)

    def put(self, places: Sequence[int], packed_BW: BlockBytes) -> None:
        self.held.put(places, packed_BW)

    def drop(self, places: Sequence[int]) -> None:
        self.held.drop(places)

    def keep(self, places: int, moves: Sequence[tuple[int, int]]) -> None:
        self.kept.append(places)
        self.held.keep(places, moves)

    def plan(self, spans: tuple[LentSpan, ...]) -> None:
        self.held.plan(spans)

    def ask(
        self,
        layer: int,
        q_RHA: Elements,
        scale: float,
        softcap: float | None,
        window: int | None,
    ) -> None:
        variant = AttentionVariant(scale, softcap)
        self.part = self.held.attend(layer, tensor_of(q_RHA), window, variant)

    def answer(self) -> tuple[Elements, Floats]:
        self.pushed += 1
        return elements_of(self.part.out_THV), self.part.log_sums_TH.numpy()

    def take(self, layer: int, places: Sequence[int]) -> BlockBytes:
        self.pulled += 1
        return self.held.take(layer, places)


def lent(stage: StageExecutor, blocks_here: int) -> NearLender:
    stage.resize_kv(blocks_here * 16)
    lender = NearLender()
    lending.lend(stage, lending.lending_by(stage, lender, PLACES))
    return lender


def jobs() -> list[Job]:
    prompts = [
        [3 + (7 * word + number) % 150 for word in range(180 - 50 * number)] for number in range(3)
    ]
    return [Job(number, prompt, 24) for number, prompt in enumerate(prompts)]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_a_quarter_at_home_gives_the_same_tokens(name, tmp_path):
    model = save_tiny(name, tmp_path)
    stages = load_stages(tmp_path, (0, 3, LAYERS))
    lenders = [lent(stage, 12) for stage in stages]
    outputs = RingDriver(stages, span_tokens=40).run(jobs())
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs()]
    assert all(one.pushed for one in lenders)
    assert all(stage.kv.tokens_used == 0 for stage in stages)
    told = lending.lender_health(stages[:1])
    assert (told.kv_tokens_own, told.kv_tokens_away) == (12 * 16, 0)
    assert told.step_wait_s == stages[0].lending.step_wait_s > 0
    assert told.row_key_wait_s == stages[0].lending.row_key_wait_s > 0


def test_bf16_plain_layers_step_aside_for_parts(tmp_path):
    exact = save_tiny("llama", tmp_path, "bfloat16").float()
    whole, parts = (load_stages(tmp_path, (0, LAYERS), "bfloat16") for _ in range(2))
    lender = lent(parts[0], 12)
    wanted, got = (RingDriver(one, span_tokens=40).run(jobs()) for one in (whole, parts))
    assert lender.pushed > 100
    for job, ours, theirs in zip(jobs(), wanted, got, strict=True):
        first = next(
            (n for n, pair in enumerate(zip(ours, theirs, strict=True)) if len({*pair}) > 1), None
        )
        if first is not None:  # After it they are answers to other texts.
            with torch.no_grad():
                logits = exact(torch.tensor([[*job.prompt, *ours[:first]]])).logits[0, -1]
            assert abs(logits[ours[first]] - logits[theirs[first]]) < BF16_LOGIT_ERROR


def test_latent_layers_lend_nothing(tmp_path):
    save_tiny("deepseek_v3", tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    with pytest.raises(UnsupportedModelError, match="lend nothing"):
        lending.lending_by(stage, NearLender(), PLACES)


def test_blocks_of_a_step_under_way_stay_where_they_are(tmp_path):
    save_tiny("llama", tmp_path)
    (stage,) = load_stages(tmp_path, (0, LAYERS))
    assert lending.lender_health([stage]) is None
    lent(stage, 12)
    stage.kv.grow(1, 8 * 16)
    table = stage.kv.table(1)
    with stage.lending.reading([RaggedSpan(0, 1, 127, 128, table)]) as parts:
        stage.lending.make_room(8)
        assert (parts, stage.kv.table(1)) == (None, table)
    stage.lending.make_room(8)
    assert stage.kv.free_here >= 8
    away = stage.kv.blocks_lent
    assert away and lending.lender_health([stage]) == LenderHealth(12 * 16, 16 * away)
    with stage.lending.reading([RaggedSpan(0, 1, 127, 128, stage.kv.table(1))]) as parts:
        assert list(parts.own.spans[0].blocks) == [one for one in stage.kv.table(1) if one < 12]


class DyingLender(NearLender):
    """Lender that is gone from one message on."""

    def __init__(self, dies_at: int) -> None:
        super().__init__()
        self.messages_left = dies_at

    def __getattribute__(self, name: str):
        if name in ("put", "plan", "ask", "answer", "take", "keep"):
            self.messages_left -= 1
            self.is_lost = self.messages_left <= 0
            if self.is_lost:
                raise LenderLostError("it is gone")
        return super().__getattribute__(name)


class LateDriver(RingDriver):
    """Ring of one stage to which a lender comes in the middle of what it computes."""

    rounds = 0
    comes_at = 6
    lender: NearLender | None = None

    def _round(self, active: list[Job]) -> None:
        self.rounds += 1
        if self.rounds == self.comes_at:
            (stage,), self.lender = self.stages, NearLender()
            held = {one: [*stage.kv.table(one)] for one in stage.kv.holders()}
            lending.lend(stage, lending.lending_by(stage, self.lender, PLACES))
            assert held and {one: [*stage.kv.table(one)] for one in stage.kv.holders()} == held
            assert stage.kv.blocks_total == stage.kv.blocks_here + PLACES
            stage.lending.make_room(stage.kv.blocks_here - 2)
        super()._round(active)


def test_a_lender_may_come_while_requests_hold_blocks(tiny_llama):
    directory, wanted = tiny_llama
    (stage,) = load_stages(directory, (0, LAYERS))
    stage.resize_kv(24 * 16)
    driver = LateDriver([stage], span_tokens=40)
    assert driver.run(short_jobs()) == wanted
    assert driver.lender.pushed and stage.kv.tokens_used == 0
    assert stage.kv.free_here == 24


CUT = SamplingParams(max_tokens=8, temperature=0.0, kv_budget=0.5)


@pytest.mark.parametrize("comes_at", [2, 6, 8])
def test_a_prompt_that_is_cut_stays_at_home_where_a_lender_comes(comes_at, tiny_llama):
    """Before its cut and behind it; what is beside it goes away, in all layers."""
    directory, _ = tiny_llama
    jobs = [Job(1, list(range(3, 103)), 8, CUT), Job(2, list(range(3, 63)), 8)]
    outputs = []
    for rounds in (0, comes_at):
        (stage,) = load_stages(directory, (0, LAYERS))
        stage.resize_kv(24 * 16)
        driver = LateDriver([stage], span_tokens=40)
        driver.comes_at = rounds
        outputs.append(driver.run([replace(job) for job in jobs]))
    assert outputs[0] == outputs[1]
    assert driver.lender.pushed or comes_at == 2
    assert stage.kv.tokens_used == 0


class MendingDriver(RingDriver):
    """Ring of one stage that goes on without its lender, as an epoch in which nobody is fresh."""

    losses = 0

    def _round(self, active: list[Job]) -> None:
        try:
            super()._round(active)
        except LenderLostError:
            (stage,) = self.stages
            assert lending.lose_lender(stage)
            self.losses += 1
            for job in active:
                if job.request_id in stage.kv.lost_requests():
                    stage.release(Release(job.request_id))
                    job.computed = 0
            lending.lend(stage, lending.lending_by(stage, self.new_lender(), PLACES))

    def new_lender(self):
        return NearLender()


@pytest.mark.parametrize("dies_at", swept(range(1, 161), *range(1, 161, 10)))
def test_a_lender_that_dies_at_any_message_costs_no_token(dies_at, tiny_llama):
    directory, wanted = tiny_llama
    (stage,) = load_stages(directory, (0, LAYERS))
    stage.resize_kv(9 * 16)
    lending.lend(stage, lending.lending_by(stage, DyingLender(dies_at), PLACES))
    driver = MendingDriver([stage], span_tokens=40)
    assert driver.run(short_jobs()) == wanted
    assert driver.losses == 1
    assert stage.kv.tokens_used == 0


def short_jobs() -> list[Job]:
    return [Job(number, list(range(3, 103 - 60 * number)), 8) for number in range(2)]


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    model = save_tiny("llama", directory)
    return directory, [generate(model, job.prompt, job.tokens) for job in short_jobs()]


class Recalling(RingDriver):
    """Ring of one stage whose lender wants places back in the middle, where there is room."""

    left, rounds = 0, 0

    def _round(self, active: list[Job]) -> None:
        self.rounds += 1
        if self.rounds == 6:
            self._recall()
        super()._round(active)

    def _recall(self) -> None:
        (stage,) = self.stages
        stage.lending.make_room(stage.kv.blocks_here - 4)
        before, held = stage.kv.holders(), stage.kv.tokens_used
        assert before and stage.kv.blocks_lent > self.left
        stage.lending.recall(self.left)
        assert not lending.give_back(stage), "the ring counts with all of it so far"
        stage.kv.resize(stage.lending.blocks_offered)
        while stage.lending is not None and stage.lending.places > self.left:
            if stage.lending.lender.is_lost:
                raise LenderLostError("it is gone")
            lending.give_back(stage)
        assert (stage.kv.holders(), stage.kv.tokens_used) == (before, held)


class RecallingDriver(MendingDriver, Recalling):
    """The same, whose lender may be lost as well."""


@pytest.mark.parametrize("left", [0, 3])
def test_places_that_are_wanted_back_go_back_and_no_row_is_computed_again(
    left, tiny_llama, monkeypatch
):
    monkeypatch.setattr(lending, "PIECE_BYTES", 1)
    directory, wanted = tiny_llama
    (stage,) = load_stages(directory, (0, LAYERS))
    lender = lent(stage, 24)
    driver = RecallingDriver([stage], span_tokens=40)
    driver.left = left
    assert driver.run(short_jobs()) == wanted
    assert driver.losses == 0 and lender.kept == [*range(PLACES - 1, left - 1, -1)]
    assert (stage.lending is None) == (not left) and stage.kv.tokens_used == 0
    assert stage.kv.room == stage.kv.blocks_here + left


@pytest.mark.parametrize("dies_at", swept(range(1, 200), *range(60, 200, 20)))
def test_a_lender_that_dies_while_places_go_back_costs_no_token(dies_at, tiny_llama, monkeypatch):
    monkeypatch.setattr(lending, "PIECE_BYTES", 1)
    directory, wanted = tiny_llama
    (stage,) = load_stages(directory, (0, LAYERS))
    stage.resize_kv(24 * 16)
    lending.lend(stage, lending.lending_by(stage, DyingLender(dies_at), PLACES))
    driver = RecallingDriver([stage], span_tokens=40)
    driver.left = 2
    assert driver.run(short_jobs()) == wanted
