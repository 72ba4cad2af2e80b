"""What a PC lends to its LAN: a process that speaks the lines, and an owner who comes first."""

import asyncio
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from molink.control.messages.cell import CellOrder, EchoOrder, LeaseOrder, LenderOrder
from molink.errors import LenderLostError
from molink_agent.daemon import cell_member
from molink_agent.daemon.cell_member import CellMember
from molink_agent.daemon.lenders.device_lender import (
    RECALL_S,
    RECALL_URGENT_S,
    CardLender,
    DeviceLender,
)
from molink_agent.limits.owner_policy import OwnerVerdict
from molink_agent.probe.gpus import GpuProbe
from molink_scheduler.units import GB, MB
from tests.agent.daemon.agents import agent_with
from tests.agent.pcs import pc
from tests.agent.probe.fake_nvml import FakeCard, FakeNvml

KEY = "ab" * 32
DOUBLE = (sys.executable, "-m", "tests.agent.daemon.lan_server_double")
LENDS = {"lend_ram_gb": "1", "lend_cpu_cores": "2"}


def lease(number: int, size_bytes: int = MB) -> LeaseOrder:
    return LeaseOrder(lease=number, key=KEY, size_bytes=size_bytes)


def member_on(tmp_path, monkeypatch, measure=None, **limits) -> CellMember:
    agent, _ = agent_with(tmp_path, **(limits or LENDS))
    monkeypatch.setattr(cell_member, "read_machine", lambda _: pc())
    agent.owner.now = OwnerVerdict(True, "")
    of = agent.owner, lambda: "127.0.0.1", 1000
    ram, card = DeviceLender(*of, command=DOUBLE), CardLender(*of, server=DOUBLE)
    ram.start_again_s = card.start_again_s = 0.05
    made = CellMember(agent.pc, ram, card, lambda: "127.0.0.1")
    if measure is not None:
        made.measure = measure
    return made


@asynccontextmanager
async def running(member: CellMember):
    await member.refresh()
    task = asyncio.create_task(member.run())
    try:
        async with asyncio.timeout(30):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(member: CellMember, condition):
    """Facts of which the condition holds."""
    while (facts := member.facts()) is None or not condition(facts):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return facts


async def test_nothing_runs_and_nothing_is_told_by_default(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch, lend_ram_gb="0")
    async with running(member):
        assert member.facts() is None
        await member.take(CellOrder(serves=True, allow=(lease(1),)))
        facts = await until(member, lambda facts: facts.ended == (1,))
        assert (facts.port, facts.memory_bytes, facts.leases) == (0, 0, ())


async def test_a_confirmed_cell_has_it_listen_and_allow_what_there_is_room_for(
    tmp_path, monkeypatch
):
    member = member_on(tmp_path, monkeypatch)
    async with running(member):
        assert member.facts().port == 0
        order = CellOrder(serves=True, allow=(lease(1, GB // 2), lease(2, GB), lease(3, 0)))
        await member.take(order)
        facts = await until(member, lambda facts: member.ram.held_bytes and len(facts.leases) == 2)
        assert facts.port == 4002 and facts.ended == (2,) and facts.started == 1000
        assert [one.lease for one in facts.leases] == [1, 3]
        assert facts.memory_bytes == GB
        await member.take(CellOrder(serves=True, end=(1,)))
        assert [one.lease for one in member.facts().leases] == [3]
        assert member.facts().ended == ()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def late(member: CellMember, within_s: float) -> None:
    """Let so long pass, at the end of which what was not brought home ends."""
    member.ram.clock = clock = Clock()
    await member.refresh()
    kept = [one.lease for one in member.facts().leases]
    clock.now = within_s - 0.1
    await member.refresh()
    assert [one.lease for one in member.facts().leases] == kept
    clock.now = within_s
    await member.refresh()


async def test_a_game_takes_all_leases_back_and_ends_the_process(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch)
    async with running(member):
        await member.take(CellOrder(serves=True, allow=(lease(1),)))
        await until(member, lambda facts: facts.leases)
        member.ram.owner.now = OwnerVerdict(False, "A program fills the screen.", is_urgent=True)
        await late(member, RECALL_URGENT_S)
        facts = member.facts()
        assert (facts.leases, facts.ended, facts.memory_bytes) == ((), (1,), 0)
        assert facts.why_less == "A program fills the screen."
        await until(member, lambda facts: facts.port == 0 and facts.started == 1001)


async def test_programs_that_need_the_memory_end_the_newest_lease_first(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch)
    async with running(member):
        await member.take(CellOrder(serves=True, allow=(lease(1, 300 * MB), lease(2, 300 * MB))))
        await until(member, lambda facts: member.ram.held_bytes == 600 * MB)
        less = pc(memory_available_bytes=2 * GB - 200 * MB)  # The reserve of 2 GB is touched.
        monkeypatch.setattr(cell_member, "read_machine", lambda _: less)
        member.ram.clock = Clock()
        await member.refresh()
        assert member.facts().memory_bytes == 400 * MB, "so much may stay"
        await late(member, RECALL_URGENT_S)
        assert [one.lease for one in member.facts().leases] == [1]
        assert member.facts().ended == (2,)


async def test_a_lower_limit_ends_leases_and_a_higher_one_does_not(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch)
    async with running(member):
        await member.take(CellOrder(serves=True, allow=(lease(1, 300 * MB), lease(2, 300 * MB))))
        await until(member, lambda facts: len(facts.leases) == 2)
        member.ram.owner.limits.set("lend_ram_gb", "0.5")
        await late(member, RECALL_S)
        assert [one.lease for one in member.facts().leases] == [1]
        member.ram.owner.limits.set("lend_ram_gb", "2")
        await member.refresh()
        assert [one.lease for one in member.facts().leases] == [1]


async def test_what_is_given_back_in_time_leaves_the_rest_and_the_process_as_they_are(
    tmp_path, monkeypatch
):
    member = member_on(tmp_path, monkeypatch)
    member.ram.clock = clock = Clock()
    async with running(member):
        await member.take(CellOrder(serves=True, allow=(lease(1, 600 * MB),)))
        await until(member, lambda facts: facts.leases and facts.leases[0].held_bytes)
        member.ram.owner.limits.set("lend_ram_gb", "0.5")
        await member.refresh()
        facts = member.facts()
        assert (facts.memory_bytes, facts.leases[0].size_bytes) == (500 * MB, 600 * MB)
        member.ram._process.held[1] = 400 * MB  # As its stage has brought a third home.
        await member.take(CellOrder(serves=True, allow=(lease(1, 400 * MB),)))
        clock.now = 2 * RECALL_S
        await member.refresh()
        facts = member.facts()
        assert [one.size_bytes for one in facts.leases] == [400 * MB]
        assert (facts.started, facts.ended) == (1000, ())


async def test_a_pause_ends_the_process_once_nothing_lies_there(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch)
    async with running(member):
        await member.take(CellOrder(serves=True, allow=(lease(1),)))
        await until(member, lambda facts: facts.leases)
        member.ram.owner.now = OwnerVerdict(False, "Paused by its owner.")
        await member.refresh()
        facts = member.facts()
        assert member.lends and (facts.memory_bytes, facts.port) == (0, 4002)
        await member.take(CellOrder(serves=True, end=(1,)))
        assert not member.lends
        await until(member, lambda facts: facts.port == 0)


async def test_a_process_that_dies_ends_all_leases_and_another_one_starts(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch)
    async with running(member):
        await member.take(CellOrder(serves=True, allow=(lease(1),)))
        before = await until(member, lambda facts: facts.leases)
        await member.take(CellOrder(serves=True, allow=(lease(1), lease(2, 13))))
        after = await until(member, lambda facts: facts.started == 1001 and facts.port)
        assert after.incarnation != before.incarnation
        assert (after.leases, set(after.ended)) == ((), {1, 2})


async def test_what_lends_and_does_not_start_lends_nothing(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch)
    member.ram.command = (sys.executable, "-c", "print('no line')")
    async with running(member):
        await member.take(CellOrder(serves=True, allow=(lease(1),)))
        await asyncio.sleep(0.3)
        assert (member.facts().port, member.facts().leases) == (0, ())


@pytest.mark.parametrize("fails", [False, True])
async def test_echoes_are_measured_once_for_each_round(tmp_path, monkeypatch, fails):
    asked = []

    def measure(order):
        asked.append(order.round)
        if fails:
            raise LenderLostError("nobody answers")
        return [0.0005] * 20

    member = member_on(tmp_path, monkeypatch, measure)

    def order(number):
        who = {"lender": "a" * 16, "host": "10.0.0.2", "port": 4, "lease": 9, "key": KEY}
        return CellOrder(echoes=(EchoOrder(round=number, **who),))

    async with running(member):
        await member.take(order(1))
        facts = await until(member, lambda facts: facts.echoes)
        await member.take(order(1))
        await member.take(order(2))
        facts = await until(member, lambda facts: facts.echoes and facts.echoes[0].round == 2)
        assert asked == [1, 2]
        assert facts.echoes[0].milliseconds == (() if fails else (0.5,) * 20)


def with_cards(member: CellMember, *cards: FakeCard) -> None:
    member.pc.gpus = GpuProbe(FakeNvml(list(cards)))


CARD_LENDS = LENDS | {"lend_gpu_gb": "4"}


async def test_main_memory_and_a_card_are_lent_by_a_process_each(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch, **CARD_LENDS)
    with_cards(member, FakeCard(), FakeCard())
    async with running(member):
        assert member.facts().card.device == "cuda:1" and member.facts().card.port == 0
        card = LenderOrder(serves=True, allow=(lease(2, 2 * GB), lease(3, 3 * GB)))
        await member.take(CellOrder(serves=True, allow=(lease(1),), card=card))
        facts = await until(
            member, lambda facts: member.ram.held_bytes and facts.card.leases and facts.leases
        )
        assert [one.lease for one in facts.leases] == [1]
        assert [one.lease for one in facts.card.leases] == [2] and facts.card.ended == (3,)
        assert (facts.memory_bytes, facts.card.memory_bytes) == (GB, 4 * GB)
        assert facts.port and facts.card.port and facts.incarnation != facts.card.incarnation
        assert facts.card.bytes_per_s == pytest.approx(0.78 * 360e9)
        assert member.card.command[-2:] == ("--device", "cuda:1")
        assert facts.host == "127.0.0.1" and member.lends
        await member.take(CellOrder(serves=True, card=LenderOrder(serves=True, end=(2,))))
        assert member.facts().card.leases == () and len(member.facts().leases) == 1


async def test_a_game_on_a_card_ends_its_leases_and_a_full_card_the_newest(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch, **CARD_LENDS)
    cards = [FakeCard(), FakeCard()]
    with_cards(member, *cards)
    async with running(member):
        orders = LenderOrder(serves=True, allow=(lease(1, GB), lease(2, GB)))
        await member.take(CellOrder(card=orders))
        await until(member, lambda facts: member.card.held_bytes == 2 * GB)
        cards[1].free = 0  # Programs have taken what stays free, and want more.
        member.card.clock = clock = Clock()
        await member.refresh()
        clock.now = RECALL_URGENT_S
        await member.refresh()
        assert [one.lease for one in member.facts().card.leases] == [1]
        cards[1].free = 8 * GB
        member.ram.owner.now = OwnerVerdict(False, "A game draws on cuda:1.", is_urgent=True)
        await member.refresh()
        clock.now += RECALL_URGENT_S
        await member.refresh()
        assert member.facts().card.leases == () and not member.lends
        assert member.facts().card.why_less == "A game draws on cuda:1."


@pytest.mark.parametrize(
    ("cards", "limits", "says"),
    [
        ([], CARD_LENDS, "no card"),
        ([FakeCard()], CARD_LENDS, "uses all that there are (cuda:0)"),
        ([FakeCard(), FakeCard()], CARD_LENDS | {"lend_gpu_gb": "50"}, "cuda:1 has 12.88 GB"),
    ],
)
async def test_a_limit_that_no_card_can_keep_lends_nothing_and_says_why(
    tmp_path, monkeypatch, cards, limits, says
):
    member = member_on(tmp_path, monkeypatch, **limits)
    with_cards(member, *cards)
    await member.refresh()
    assert member.card.room.size_bytes == 0 and says in member.card.room.why_less


async def test_a_card_on_which_a_stage_still_is_lends_once_that_has_ended(tmp_path, monkeypatch):
    member = member_on(tmp_path, monkeypatch, **CARD_LENDS)
    with_cards(member, FakeCard(), FakeCard())
    stage = member.pc.stages[0]
    work = SimpleNamespace(device="cuda:1")
    stage.manager.handle = SimpleNamespace(load=SimpleNamespace(work=work), pid=7)
    stage.manager.handle.loaded = None
    await member.refresh()
    assert member.card.room.why_less == "A stage is on cuda:1 until its ring ends."
    stage.manager.handle = None
    await member.refresh()
    assert member.card.room.size_bytes == 4 * GB


def test_a_lease_s_key_is_never_printed():
    assert KEY not in repr(CellOrder(allow=(lease(1),)))
