"""No text of a message, whoever sends it, can make a terminal do anything."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from molink.control.messages.base import Message
from molink.control.messages.joining import JoinAnswer, JoinRequest
from molink.control.messages.payloads import NodeWish, Presence, Profile, StageFact
from molink.control.messages.topics import ALL_TOPICS, UnreadableError, read_message
from tests.golden.values_joining import PLAIN
from tests.golden.values_told import PAYLOADS
from tests.nasty_text import OBEYED, nasty_texts

NEVER_PRINTED = {"certificate", "authority", "request", "password", "weights_token", "config"}
"""Certificates have lines; what is sealed in a voucher; secrets; a model's config, of which errors
are cleaned as sentences."""

EXAMPLES = [build()[1] for build in PAYLOADS.builders.values()]
JOINS = [build() for build in PLAIN.builders.values()]


def texts(value, name=""):
    """Every text in the JSON of a message, keys too, with the name of its field."""
    match value:
        case str():
            yield name, value
        case dict():
            for key, one in value.items():
                yield from ((name or "key", key), *texts(one, key))
        case list():
            for one in value:
                yield from texts(one, name)


def with_text(value, place, text):
    """The same JSON with its `place`th text replaced, and how many texts were counted."""
    match value:
        case str():
            return (text if place == 0 else value), 1
        case dict():
            return _with(value.items(), place, text, dict)
        case list():
            return _with(enumerate(value), place, text, lambda pairs: [one for _, one in pairs])
        case _:
            return value, 0


def _with(items, place, text, build):
    found, counted = [], 0
    for key, one in items:
        new, count = with_text(one, place - counted, text)
        found.append((key, new))
        counted += count
    return build(found), counted


def count_of(plain):
    return with_text(plain, -1, "")[1]


def is_safe(message: Message) -> bool:
    plain = json.loads(message.model_dump_json())
    printed = (text for name, text in texts(plain) if name not in NEVER_PRINTED)
    return not set("".join(printed)) & OBEYED


def test_every_kind_of_message_has_an_example():
    assert {type(one) for one in EXAMPLES} == {topic.message for topic in ALL_TOPICS}
    assert {type(one) for one in JOINS} >= {JoinRequest, JoinAnswer}


@given(st.data())
def test_nothing_that_a_terminal_obeys_survives_in_any_message(data):
    message = data.draw(st.sampled_from([*EXAMPLES, *JOINS]))
    plain = json.loads(message.model_dump_json(exclude={"config"}))
    if not count_of(plain):
        return
    place = data.draw(st.integers(0, count_of(plain) - 1))
    changed, _ = with_text(plain, place, data.draw(nasty_texts))
    with suppress(ValidationError):
        assert is_safe(type(message).model_validate(changed))


@given(nasty_texts)
def test_a_refusal_shows_nothing_of_it(text):
    payload = json.dumps({text: text, "name": text}).encode()
    with pytest.raises(UnreadableError) as refused:
        read_message("molink/v1/node/abcdefghijklmnop/said/presence", payload, retained=False)
    assert not set(str(refused.value)) & OBEYED


def test_a_chosen_name_is_refused_and_a_sentence_cleaned():
    with pytest.raises(ValidationError, match="control characters"):
        Presence(
            name="attic\x1b[2J",
            incarnation="12345678",
            started_unix_s=0,
            version="1",
            online=True,
        )
    assert NodeWish(wish="pause", reason="a \x1b[31mgame").reason == "a \ufffd[31mgame"
    assert StageFact(revision=1, kind="failed", message="two\nlines").message == "two lines"


def test_what_a_driver_calls_its_card_does_not_keep_it_out():
    device = {"kind": "cuda", "name": "RTX\x00 4090", "memory_bytes": 1, "free_bytes": 1}
    profile = Profile.model_validate(
        {
            "devices": [device],
            "cpu_threads": 1,
            "memory_bytes": 1,
            "disk_free_bytes": 0,
            "upload_mbps": 0,
            "download_mbps": 0,
        }
    )
    assert profile.devices[0].name == "RTX\ufffd 4090"
