"""Thanks of the coordinator: asked with the owner's consent or without, kept, and said in words."""

import asyncio
import json
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from molink.errors import UserError
from molink_agent.limits.limits_file import LIMITS_FILE, LimitsFile
from molink_agent.thanks import fetched as module
from molink_agent.thanks.fetched import (
    THANKS_FILE,
    Rank,
    Thanks,
    ask_for_owner,
    ask_thanks,
    keep_thanks,
)
from molink_agent.thanks.words import ranking_lines, thanks_text

EVENING = datetime(2026, 11, 21, 20, 5)
TOLD = Thanks(
    since_unix_s=EVENING.timestamp(),
    people=3,
    answers=41,
    cluster_people=5,
    cluster_answers=1060,
    ranking=(Rank(name="ben", token_layers=800), Rank(name="anna", token_layers=80, is_you=True)),
)
MEMBER = SimpleNamespace()
LONG = {"name": "x" * 999, "token_layers": 1}


def test_this_evening_in_people():
    later = EVENING + timedelta(hours=2)
    assert thanks_text(TOLD, later) == (
        "Since 20:05 this PC has helped 3 people with 41 answers, the whole cluster 5 people with "
        "1,060 answers. Thank you!"
    )
    one = TOLD.model_copy(update={"people": 1, "answers": 1})
    assert "helped 1 person with 1 answer," in thanks_text(one, later)
    idle = TOLD.model_copy(update={"people": 0, "answers": 0})
    assert "was not needed yet" in thanks_text(idle, later)


def test_another_night_is_not_this_one():
    assert thanks_text(TOLD, EVENING + timedelta(hours=14))
    assert thanks_text(TOLD, EVENING + timedelta(hours=17)) == ""
    assert thanks_text(None, EVENING) == ""
    nobody = {"people": 0, "answers": 0, "cluster_people": 0, "cluster_answers": 0}
    assert thanks_text(TOLD.model_copy(update=nobody), EVENING) == ""


def test_the_ranking_is_in_words():
    assert list(ranking_lines(TOLD, 8)) == ["1. ben: 75 words", "2. anna (this PC): 8 words"]
    assert next(ranking_lines(TOLD, None)) == "1. ben: 800 tokens x layers"
    assert not list(ranking_lines(None, 8))


@pytest.mark.parametrize(("named", "path"), [(True, "?named=1"), (False, "/agents/thanks")])
def test_the_owner_s_consent_goes_with_the_question(monkeypatch, named, path):
    asked = []

    def answer(membership, path, bytes_max):
        asked.append(path)
        return TOLD.model_dump_json().encode()

    monkeypatch.setattr(module, "answer_of_coordinator", answer)
    assert ask_thanks(MEMBER, named=named) == TOLD
    assert asked[0].endswith(path)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"error": {"message": "There is nothing here."}}',
        json.dumps(TOLD.model_dump() | {"people": -1}).encode(),
        json.dumps(
            TOLD.model_dump() | {"ranking": [{"name": "x" * 999, "token_layers": 1}]}
        ).encode(),
    ],
)
def test_what_is_no_such_answer_is_none(monkeypatch, body):
    monkeypatch.setattr(module, "answer_of_coordinator", lambda *asked: body)
    assert ask_thanks(MEMBER, named=True) is None
    assert ask_thanks(None, named=True) is None


async def test_the_last_answer_is_kept(tmp_path, monkeypatch):
    answers, asked_thrice = [None, UserError("It does not answer."), TOLD, None], asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask():
        if len(answers) == 1:
            loop.call_soon_threadsafe(asked_thrice.set)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, UserError):
            raise answer
        return answer

    for name in ("ASK_AGAIN_S", "ASK_EVERY_S"):
        monkeypatch.setattr(module, name, 0.0)
    keeping = asyncio.ensure_future(keep_thanks(tmp_path, ask))
    async with asyncio.timeout(10):
        await asked_thrice.wait()
    keeping.cancel()
    assert Thanks.load(tmp_path) == TOLD
    (tmp_path / THANKS_FILE).write_text("{")
    assert Thanks.load(tmp_path) is None


def test_only_an_owner_who_agrees_is_named(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "ask_thanks", lambda membership, named: asked.append(named))
    ask_for_owner(tmp_path)
    LimitsFile(tmp_path).set("in_ranking", "true")
    ask_for_owner(tmp_path)
    (tmp_path / LIMITS_FILE).write_text("in_ranking = maybe")
    ask_for_owner(tmp_path)
    assert asked == [False, True, False]
