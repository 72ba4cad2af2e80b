"""A coordinator that was killed and started again goes on with the rings that it finds."""

import shutil
import time
from contextlib import aclosing, asynccontextmanager, closing
from itertools import count

import pytest

from molink.control.messages.assignment import GoOn, Hold, Load
from molink.control.messages.payloads import StageFact
from molink.coordinator.upkeep import take_over
from molink.coordinator.upkeep.take_over import RingKeeper
from molink.serving.answer_log import Place
from molink.serving.answers.live_state import LiveState
from molink.serving.token_events import TokenEvent
from molink_scheduler.resume import Resume
from tests.coordinator.examples import HERE, PROFILE
from tests.coordinator.upkeep.world import ANNA_AND_BERT, collect, request, world

ANNA, BERT = sorted(ANNA_AND_BERT)
SETTINGS = "float32"


def opened(folder):
    return closing(LiveState.open(folder, "m", time.time()))


@pytest.fixture
async def left(monkeypatch, tmp_path):
    """What a coordinator has left that was killed while a ring of two served a request, which has
    had two of its three tokens, and what the ring's nodes were told last."""
    (tmp_path / "first").mkdir()
    (tmp_path / "left").mkdir()
    with opened(tmp_path / "first") as live:
        async with world(monkeypatch, 2, keeper=RingKeeper(live, SETTINGS)) as w:
            w.join(ANNA, BERT)
            await w.until(lambda: w.serving)
            log = live.log("gen-a", "", "", request(3))
            log.begin()
            log.submitted(Place(0, 41, 0))
            for token in (5, 6):
                log.took(TokenEvent((token,), ""))
            await live.find("", "gen-a")
            for end in ("", "-wal"):
                name = f"{live.path.name}{end}"
                shutil.copyfile(tmp_path / "first" / name, tmp_path / "left" / name)
            told = {node.node_id: node.assignment for node in w.book}
    return tmp_path / "left", told


@asynccontextmanager
async def started_again(monkeypatch, left, settings=SETTINGS):
    """The next coordinator, which has heard nobody yet."""
    folder, told = left
    with opened(folder) as live:
        keeper, unfinished = RingKeeper(live, settings), live.unfinished()
        for one in unfinished:
            keeper.add(one)
        async with world(monkeypatch, 2, keeper=keeper, numbers=count(1000)) as w:
            w.survives = True
            w.unfinished, w.live, w.left = unfinished, live, told
            yield w


def comes_back(w, name, *, restarted=False):
    w.book.node(name).public_key = "k" * 40
    presence = HERE.model_copy(update={"name": name})
    if restarted:
        presence = presence.model_copy(update={"incarnation": "another-start"})
    w.say(name, presence)
    w.say(name, PROFILE)
    if not restarted:
        w.say(name, StageFact(revision=w.left[name].revision, kind="ready"))


def loads(w):
    """Nodes that were told to load, and not to wait or to join."""
    return [name for name, one in w.told if isinstance(one.command, Load)]


async def test_stages_that_stand_go_on_with_what_they_hold(monkeypatch, left):
    async with started_again(monkeypatch, left) as w:
        (asked,) = w.unfinished
        with_answer = w.manager.tasks.create_task(w.service.finish_earlier(asked))
        comes_back(w, ANNA)
        await w.until(lambda: "ran before this start" in w.service.progress)
        assert not w.told, "the other one may come back yet"
        comes_back(w, BERT)
        await w.until(lambda: w.serving)
        joins = [one for _, one in w.told if isinstance(one.command, GoOn)]
        assert len(joins) == 2 and not loads(w), "nobody loads anything"
        assert {one.command.resume for one in joins} == {Resume(((41, 2 + 2 - 1),))}
        epochs = {one.epoch for one in joins}
        assert len(epochs) == 1 and epochs.pop() > max(one.epoch for one in w.left.values())
        (client,) = w.clients
        assert client.went_on == [(client.ring.epoch, frozenset({41}), frozenset())]
        assert [ring.number for ring in w.serving] == [0] and client.adopted == [asked]
        client.tokens.put_nowait(7)
        await with_answer
        assert client.seen[0][1] == (5, 6)
        found = await w.live.find("", "gen-a")
        assert found.token_ids == (5, 6, 7) and found.ending.finish_reason == "length"


async def test_an_answer_that_its_client_has_ended_meanwhile_does_not_go_on(monkeypatch, left):
    async with started_again(monkeypatch, left) as w:
        w.manager.keeper.ended(*w.unfinished)
        comes_back(w, ANNA)
        comes_back(w, BERT)
        await w.until(lambda: w.serving)
        assert not w.clients[0].adopted


async def test_a_stage_that_is_gone_is_loaded_again_and_the_other_stays(monkeypatch, left):
    async with started_again(monkeypatch, left) as w:
        comes_back(w, ANNA)
        comes_back(w, BERT, restarted=True)
        await w.until(lambda: w.serving)
        assert loads(w) == [BERT]
        resumes = {
            name: one.command.resume for name, one in w.told if isinstance(one.command, GoOn)
        }
        assert not resumes[ANNA].fresh and resumes[BERT].fresh


async def test_a_ring_whose_nodes_stay_away_is_given_up(monkeypatch, left):
    monkeypatch.setattr(take_over, "TAKE_OVER_WITHIN_S", 0.0)
    async with started_again(monkeypatch, left) as w:
        (asked,) = w.unfinished
        w.join(ANNA)
        await w.until(lambda: not w.service.expected)
        w.join("c" * 16)
        await w.until(lambda: w.serving)
        assert w.members() == [[ANNA, "c" * 16]] and w.serving[0].number == 1
        async with aclosing(w.service.generate(asked)) as answer:
            w.clients[-1].tokens.put_nowait(7)
            assert await collect(answer) == [7]
        assert w.clients[-1].seen[0][1] == (5, 6), "from its tokens"
    kinds = [event.text for event in w.service.events.report(0).events]
    assert any("did not come back" in text for text in kinds)


async def test_a_ring_of_which_nothing_is_left_is_built_anew(monkeypatch, left):
    async with started_again(monkeypatch, left) as w:
        for name in (ANNA, BERT):
            comes_back(w, name, restarted=True)
        await w.until(lambda: w.serving)
        assert w.serving[0].number == 1
        assert not any(isinstance(one.command, GoOn | Hold) for _, one in w.told)


async def test_a_ring_that_was_loaded_otherwise_is_built_anew(monkeypatch, left):
    async with started_again(monkeypatch, left, settings="float16") as w:
        for name in (ANNA, BERT):
            comes_back(w, name)
        await w.until(lambda: w.serving)
        assert w.serving[0].number == 0
        assert not any(isinstance(one.command, GoOn | Hold) for _, one in w.told)
        assert not w.clients[0].adopted


async def test_a_ring_that_has_ended_is_not_taken_over(monkeypatch, tmp_path):
    with opened(tmp_path) as live:
        async with world(monkeypatch, 2, keeper=RingKeeper(live, SETTINGS)) as w:
            w.join(ANNA, BERT)
            await w.until(lambda: w.serving)
            await live.find("", "gen-a")
            assert [number for number, _ in live.rings()] == [0]
    with opened(tmp_path) as live:
        assert not live.rings()


async def test_a_ring_that_was_kept_with_a_command_of_another_version_is_forgotten(left):
    folder, _ = left
    with opened(folder) as live:
        ((number, text),) = live.rings()
        assert [kept.number for kept in RingKeeper(live, SETTINGS).rings()] == [number]
        for other in (text.replace('"kind":"join"', '"kind":"fly"', 1), text.replace("work", "w")):
            live.keep_ring(number, other)
            await live.find("", "gen-a")
            assert live.rings() == [(number, other)]
            assert RingKeeper(live, SETTINGS).rings() == []
            await live.find("", "gen-a")
            assert live.rings() == []
