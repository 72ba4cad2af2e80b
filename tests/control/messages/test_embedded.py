"""Values of other schemas within messages: checked one by one, and no reason to drop the rest."""

import json
from dataclasses import asdict
from typing import get_args

import pytest

from molink.control.messages.assignment import (
    Assignment,
    Command,
    Extend,
    Follow,
    GoOn,
    Hold,
    Join,
    Load,
    Stop,
)
from molink.control.messages.base import Unreadable, is_bare
from molink.control.messages.payloads import NodeHealth, StageFact, StageLink
from molink.control.messages.topics import UnreadableError, read_message
from molink.printable import is_printable
from molink.stage_protocol.health import PackingHealth, StageHealth
from molink.stage_protocol.messages import StageLoaded
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.resume import Resume
from tests.coordinator.examples import WORK

SIDE = PackingHealth("raw", 0, 0, 0.0)
HEALTH = StageHealth(7, 1.0, 0.5, 3, None, None, 0, SIDE, SIDE, 0, None, None, 0.1, 0.2, ())
LOADED = StageLoaded(5000, None, "cpu", "float32", 64, 10)
TERMS = RingTerms(64, None, (1, 2), 128)


def beat(stage):
    return NodeHealth.model_validate_json(
        json.dumps({"incarnation": "i", "state": "serving", "uptime_s": 1, "stage": stage})
    )


def test_a_stage_that_reports_is_typed():
    assert beat(asdict(HEALTH)).stage == HEALTH
    assert beat(asdict(HEALTH) | {"said_by_a_newer_agent": 1}).stage == HEALTH
    assert beat(None).stage is None


@pytest.mark.parametrize("change", [{"steps": -1}, {"busy_s": float("nan")}, {"links": "none"}])
def test_a_report_that_cannot_be_read_leaves_a_sign_of_life(change):
    health = beat(asdict(HEALTH) | change)
    assert isinstance(health.stage, Unreadable) and next(iter(change)) in health.stage.why
    assert health.uptime_s == 1


def test_what_is_no_object_is_no_message():
    for stage in ("up", 7, []):
        with pytest.raises(ValueError, match="stage"):
            beat(stage)


@pytest.mark.parametrize("line", [None, LOADED])
def test_a_fact_without_a_loaded_stage_says_so_with_an_empty_object(line):
    fact = StageFact(revision=1, kind="loaded", line=line)
    assert json.loads(fact.model_dump_json())["line"] == ({} if line is None else asdict(LOADED))
    assert StageFact.model_validate_json(fact.model_dump_json()) == fact


LINK = StageLink(to="n" * 16, public_key="k" * 40, addresses=(), port_name="ring")
PLACED = {"work": WORK, "terms": TERMS, "next_link": LINK, "coordinator_link": None}
COMMANDS = [
    Stop(),
    Load(work=WORK),
    Extend(work=WORK),
    Hold(work=WORK),
    Join(**PLACED),
    GoOn(**PLACED | {"coordinator_link": LINK}, resume=Resume(((4, 7),), next_held=())),
    Follow(work=WORK, terms=TERMS),
]


def sent(command: dict) -> Assignment:
    """An assignment as it is read where it arrives."""
    text = json.dumps({"revision": 1, "command": command})
    return Assignment.model_validate_json(text, strict=True)


def plain_of(command) -> dict:
    return json.loads(Assignment(revision=1, command=command).model_dump_json())["command"]


def test_every_command_comes_back_as_it_was():
    assert {type(one) for one in COMMANDS} == set(get_args(Command)), "there is one of each"
    for command in COMMANDS:
        read = sent(plain_of(command))
        assert read.command == command and type(read.command) is type(command)
        assert read.work == (None if isinstance(command, Stop) else WORK)


def test_a_name_that_only_an_earlier_version_knew_is_passed_over():
    """The order on the links was among the terms; whoever tells it is understood all the same."""
    plain = plain_of(Join(**PLACED))
    plain["terms"]["policy"] = "molink"
    assert sent(plain).command == Join(**PLACED)


@pytest.mark.parametrize(
    "plain",
    [
        {"kind": "fly", "work": {"wings": 2}},
        {},
        {"kind": "load"},
        plain_of(Join(**PLACED)) | {"terms": {"span_tokens": "of next year"}},
        plain_of(COMMANDS[5]) | {"resume": {"requests": [[4, 0]]}},
        plain_of(Join(**PLACED)) | {"next_link": None},
    ],
)
def test_a_command_of_another_version_is_kept_as_it_came_and_asks_for_no_layers(plain):
    read = sent(plain)
    assert isinstance(read.command, Unreadable) and read.revision == 1
    assert (read.command.plain, read.work) == (plain, None)
    assert json.loads(read.model_dump_json())["command"] == plain


def test_an_assignment_without_a_command_is_of_an_older_version():
    older = {"revision": 1, "work": None, "join": None, "next_link": None, "resume": None}
    assert isinstance(Assignment.model_validate(older).command, Unreadable)


def test_what_is_no_command_at_all_is_no_message():
    for command in ("stop", 7, ["stop"], None, {"kind": "fl\x1by"}):
        with pytest.raises(ValueError, match="command"):
            sent(command)


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("name", ["raw\x1b[2J", "raw\x7f", "raw\u202e", 'rohe Zeilen für \\ und "'])
def test_a_name_within_a_report_is_looked_at_however_it_is_written(name, escaped):
    """The glance that spares looking at each text lets none pass that holds what it should not."""
    stage = asdict(HEALTH) | {"packed": asdict(SIDE) | {"codec": name}}
    beat = {"incarnation": "i", "state": "serving", "uptime_s": 1, "stage": stage}
    payload = json.dumps(beat, ensure_ascii=escaped).encode()
    path = f"molink/v1/node/{'a' * 16}/said/health"
    assert not is_bare(payload) and is_bare(json.dumps(beat | {"stage": asdict(HEALTH)}).encode())
    if is_printable(name):
        assert read_message(path, payload, retained=False).message.stage.packed.codec == name
    else:
        with pytest.raises(UnreadableError):
            read_message(path, payload, retained=False)
