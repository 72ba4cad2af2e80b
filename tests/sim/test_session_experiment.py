"""Sessions in the full simulator: what the core caches of them, and what that saves."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.errors import UserError
from molink.workload.sessions import AgentSession, SessionTurn
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.routing.ring_choice import Routing
from molink_sim.scenario import EntrySpec, NodeLoss, Scenario
from molink_sim.session_experiment import figures
from molink_sim.simulate import World
from molink_sim.systems import system_named
from tools.agent_sessions import write_sessions

TURNS = [SessionTurn(320, 16, 1.0)] + [SessionTurn(64, 16, 1.0)] * 5
"""Prompts of 320 tokens and 80 more each time: whole blocks, so that what is cached is exact."""


def played(ring, sessions, *, cache=True, rings=1, at_once=1, routing=Routing.MOLINK, **changes):
    system = system_named("molink", prefix_cache=cache)
    entry = EntrySpec(routing)
    world = World(
        Scenario(
            (ring,) * rings,
            (),
            system,
            entry,
            sessions,
            at_once,
            duration_s=1.0,
            drain_s=1e5,
            **changes,
        )
    )
    world.run()
    assert all(one.finished for one in world.coordinator.requests)
    assert all(stage.core.refused_count == 0 for each in world.rings for stage in each.stages)
    return world


def test_a_turn_computes_what_is_new_and_follows_the_answer_before(plain_ring):
    turns = played(plain_ring(), [AgentSession(TURNS)]).coordinator.requests
    assert [one.input_tokens for one in turns] == [320 + 80 * number for number in range(6)]
    history = [0] + [336 + 80 * number for number in range(5)]
    computed = [(tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS for tokens in history[1:]]
    assert [one.cached_tokens for one in turns] == [0, *computed]
    for before, after in pairwise(turns):
        assert after.arrived_s == pytest.approx(before.token_times_s[-1] + 1.0)
    without = played(plain_ring(), [AgentSession(TURNS)], cache=False).coordinator.requests
    assert {one.cached_tokens for one in without} == {0}
    assert without[-1].ttft_s > 2 * turns[-1].ttft_s


def test_sessions_share_a_prefix_and_nothing_else(plain_ring):
    once = [SessionTurn(64, 4)]
    sessions = [AgentSession(once, name, 160) for name in ("a", "a", "b")]
    turns = played(plain_ring(), sessions).coordinator.requests
    assert [one.cached_tokens for one in turns] == [0, 160, 0]


def test_so_many_sessions_are_played_at_a_time(plain_ring):
    sessions = [AgentSession(TURNS)] * 5
    turns = played(plain_ring(), sessions, at_once=2).coordinator.requests
    assert len(turns) == 30
    spans = [(one.arrived_s, one.token_times_s[-1]) for one in turns]
    most = max(sum(begins <= at < ends for begins, ends in spans) for at, _ in spans)
    assert most == 2
    begun = {one.session for one in turns if one.arrived_s <= 1.0}
    assert begun == {0, 1}


@pytest.mark.parametrize("host_blocks", [0, 500])
def test_what_a_device_has_no_room_for_comes_back_from_host_memory(plain_ring, host_blocks):
    ring = plain_ring(kv_tokens=1200)
    tiers = CacheTiers(host_blocks, copy_block_s=0.001)
    ring = replace(ring, stages=tuple(replace(one, tiers=tiers) for one in ring.stages))
    turns = played(ring, [AgentSession(TURNS)] * 3, at_once=3).coordinator.requests
    hits = figures(turns)["5 on"]["hit_rate"]
    assert hits > 0.8 if host_blocks else hits < 0.6


def test_a_fetch_takes_as_long_as_its_blocks_take_to_copy(plain_ring):
    def last_ttft_s(copy_block_s):
        ring = plain_ring(kv_tokens=800)
        tiers = CacheTiers(500, copy_block_s=copy_block_s)
        ring = replace(ring, stages=tuple(replace(one, tiers=tiers) for one in ring.stages))
        turn, fill = SessionTurn(640, 4), AgentSession([SessionTurn(700, 4)])
        again = AgentSession([SessionTurn(16, 4)], "a", 640)
        sessions = [AgentSession([replace(turn, new_tokens=16)], "a", 640), fill, again]
        turns = played(ring, sessions).coordinator.requests
        return turns[-1].cached_tokens, turns[-1].ttft_s

    cached, quick_s = last_ttft_s(0.0)
    slow_cached, slow_s = last_ttft_s(0.001)
    assert cached == slow_cached == 640
    assert 0.02 <= slow_s - quick_s <= 0.045, "some 40 blocks of 1 ms, on all stages side by side"


def test_a_session_stays_on_the_ring_that_has_its_history(plain_ring):
    sessions = [AgentSession(TURNS)] * 4
    turns = played(plain_ring(), sessions, rings=2, at_once=4).coordinator.requests
    rings = [{one.ring for one in turns if one.session == number} for number in range(4)]
    assert all(len(each) == 1 for each in rings) and set.union(*rings) == {0, 1}
    drawn = played(plain_ring(), sessions, rings=2, at_once=4, routing=Routing.RANDOM)
    assert any(
        len({one.ring for one in drawn.coordinator.requests if one.session == number}) == 2
        for number in range(4)
    )


def test_a_ring_that_loses_a_stage_caches_anew_and_the_session_goes_on(plain_ring):
    turns = [*TURNS[:2], replace(TURNS[1], wait_s=60.0), TURNS[1]]
    loss = NodeLoss(0, 1, 30.0, 31.0)
    found = played(plain_ring(), [AgentSession(turns)], faults=(loss,)).coordinator.requests
    assert found[1].token_times_s[-1] < 30 < found[2].arrived_s
    assert [one.cached_tokens > 0 for one in found] == [False, True, False, True]


def test_the_same_sessions_give_the_same_times(plain_ring):
    def times():
        world = played(plain_ring(), [AgentSession(TURNS)] * 3, rings=2, at_once=3)
        return [one.token_times_s for one in world.coordinator.requests]

    assert times() == times()


SHORT = ["--model", "llama-3-8b", "--stages", "2", "--rings", "2", "--quiet"]


def test_the_command_shows_both_and_writes_them(tmp_path):
    write_sessions(tmp_path / "s.jsonl", [AgentSession(TURNS)] * 2)
    out = tmp_path / "out.json"
    command = ["sim", "sessions", "--sessions", str(tmp_path / "s.jsonl"), *SHORT]
    result = CliRunner().invoke(cli, [*command, "--json", str(out)], catch_exceptions=False)
    assert result.exit_code == 0 and "5 on" in result.output
    found = json.loads(out.read_text())
    assert found["cache"]["all"]["turns"] == 12 and found["no cache"]["all"]["hit_rate"] == 0
    assert found["cache"]["5 on"]["hit_rate"] > 0.8


@pytest.mark.parametrize(
    "options, words",
    [
        (["--kv-tokens", "400"], "longer than the 400 tokens"),
        (["--gpu", "rtx1"], "rtx"),
        (["--stages", "99"], "layers"),
        (["--bandwidth-mbps", "0"], "above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, options, words):
    write_sessions(tmp_path / "s.jsonl", [AgentSession(TURNS)])
    command = ["sim", "sessions", "--sessions", str(tmp_path / "s.jsonl"), *SHORT, *options]
    with pytest.raises(UserError, match=words) as refusal:
        CliRunner().invoke(cli, command, catch_exceptions=False)
    assert "\n" not in str(refusal.value)
