"""A stage with a part of its KV in another PC, by real processes over TCP: the same answers."""

import sys
from collections.abc import Iterator

import pytest
import torch

from molink.engine.layers import lent_attention
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.step import lending
from molink.errors import LenderLostError
from molink_scheduler.batch import Release
from tests.engine.ring_driver import RingDriver, load_stages
from tests.engine.step.test_lending import PLACES, MendingDriver, jobs, short_jobs
from tests.engine.tiny_models import LAYERS, generate, save_tiny
from tests.lender.lan.owner import Owner, patient
from tests.lender.test_lender_process import SIZE, SPANS, Stage, random_rows
from tests.sweeps import swept

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lends to a LAN")


@pytest.mark.parametrize(
    "dtype, kv_dtype, within",
    [
        (torch.float32, "auto", 2e-5),
        (torch.bfloat16, "auto", 3e-2),
        (torch.float32, "int8", 2e-5),
    ],
)
def test_parts_of_decode_rows_drafts_and_prompts_are_as_the_whole(
    owner: Owner, dtype: torch.dtype, kv_dtype: str, within: float
) -> None:
    client = patient(owner.lease())
    stage = Stage(client, dtype, kv_dtype)
    sinks_H = random_rows(4, seed=5, dtype=torch.float32)
    for variant in (AttentionVariant(SIZE**-0.5), AttentionVariant(SIZE**-0.5, 5.0, sinks_H)):
        assert stage.differs(SPANS, variant) < within
    client.link.close()


def test_brought_keys_give_the_same(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_attention, "is_sooner_pushed", lambda *_: False)
    client = patient(owner.lease())
    assert Stage(client, torch.float32, "auto").differs(SPANS, AttentionVariant(0.2)) < 2e-5
    client.link.close()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_half_of_the_keys_there_give_the_same_tokens(owner, name, tmp_path):
    model = save_tiny(name, tmp_path)
    stages = load_stages(tmp_path, (0, 3, LAYERS))
    clients = [patient(owner.lease()) for _ in stages]
    for stage, client in zip(stages, clients, strict=True):
        stage.resize_kv(12 * 16)
        lending.lend(stage, lending.lending_by(stage, client, PLACES))
    outputs = RingDriver(stages, span_tokens=40).run(jobs())
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs()]
    assert all(client._asked.number > 30 for client in clients)
    for client in clients:
        client.link.close()


@pytest.fixture
def second() -> Iterator[Owner]:
    served = Owner("--device", "cpu")
    yield served
    served.close()


def test_two_lenders_of_one_pc_serve_one_ring(owner, second, tmp_path):
    """As its main memory and a card are lent: a process for each, by its own device."""
    model = save_tiny("llama", tmp_path)
    stages, clients = load_stages(tmp_path, (0, 3, LAYERS)), []
    assert second.incarnation != owner.incarnation and second.port != owner.port
    for stage, lends in zip(stages, (owner, second), strict=True):
        clients.append(patient(lends.lease()))  # It begins at once, or the other end gives up.
        stage.resize_kv(12 * 16)
        lending.lend(stage, lending.lending_by(stage, clients[-1], PLACES))
    outputs = RingDriver(stages, span_tokens=40).run(jobs())
    assert outputs == [generate(model, job.prompt, job.tokens) for job in jobs()]
    assert all(client._asked.number > 30 for client in clients)
    assert all(len(one.lenders()) == 1 for one in (owner, second))
    for client in clients:
        client.link.close()


class KilledAt:
    """Lender of a lease whose process is killed before one of the stage's messages."""

    def __init__(self, owner: Owner, client, message: int) -> None:
        self._owner, self._client, self._left = owner, client, message

    def __getattr__(self, name: str):
        if name in ("put", "plan", "ask", "answer", "take"):
            self._left -= 1
            if not self._left:
                (process,) = self._owner.lenders()
                process.kill()
        return getattr(self._client, name)


class ReconnectingDriver(MendingDriver):
    """Ring that comes for its lease again when its lender is lost."""

    def __init__(self, stages, lease) -> None:
        super().__init__(stages, span_tokens=40)
        self.lease = lease

    def new_lender(self):
        return patient(self.lease)


class LosingDriver(ReconnectingDriver):
    """Ring of two stages that loses the lender of the first, and with it the second stage: what
    takes its place holds nothing, so all is computed anew."""

    def __init__(self, stages, lease, directory) -> None:
        super().__init__(stages, lease)
        self.directory = directory

    def _round(self, active) -> None:
        try:
            RingDriver._round(self, active)
        except LenderLostError:
            first, _ = self.stages
            assert lending.lose_lender(first)
            self.losses += 1
            (fresh,) = load_stages(self.directory, (3, LAYERS))
            self.stages = [first, fresh]
            for job in active:
                first.release(Release(job.request_id))
                job.computed = 0
            lending.lend(first, lending.lending_by(first, self.new_lender(), PLACES))


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    model = save_tiny("llama", directory)
    return directory, [generate(model, job.prompt, job.tokens) for job in short_jobs()]


@pytest.mark.parametrize("message", swept(range(1, 161), *range(1, 161, 20)))
def test_one_that_is_killed_at_any_message_costs_no_token(owner, message, tiny_llama):
    directory, wanted = tiny_llama
    (stage,) = load_stages(directory, (0, LAYERS))
    stage.resize_kv(9 * 16)
    lease = owner.lease()
    lender = KilledAt(owner, patient(lease), message)
    lending.lend(stage, lending.lending_by(stage, lender, PLACES))
    driver = ReconnectingDriver([stage], lease)
    assert driver.run(short_jobs()) == wanted
    assert driver.losses == 1
    assert stage.kv.tokens_used == 0
    stage.lending.lender.link.close()
    owner.until_ended(lease)  # The killed one, or
    owner.until_ended(lease)  # the second: no other test finds it.


@pytest.mark.parametrize("message", swept(range(1, 73), *range(1, 73, 36)))
def test_one_that_is_killed_beside_a_lost_stage_costs_no_token(owner, message, tiny_llama):
    directory, wanted = tiny_llama
    stages = load_stages(directory, (0, 3, LAYERS))
    stages[0].resize_kv(9 * 16)
    lease = owner.lease()
    lender = KilledAt(owner, patient(lease), message)
    lending.lend(stages[0], lending.lending_by(stages[0], lender, PLACES))
    driver = LosingDriver(stages, lease, directory)
    assert driver.run(short_jobs()) == wanted
    assert driver.losses == 1
    assert all(stage.kv.tokens_used == 0 for stage in driver.stages)
    stages[0].lending.lender.link.close()
    owner.until_ended(lease)
    owner.until_ended(lease)
