import json
from dataclasses import asdict
from random import Random

import pytest

from molink.errors import UserError
from molink.workload.sessions import AgentSession, SessionTurn, read_sessions
from tools.agent_sessions import IN_FOR_ONE_OUT, generate_session, write_sessions

TURN = {"new_tokens": 7, "answer_tokens": 3, "wait_s": 0.5}
ROW = {"prefix": "a", "prefix_tokens": 10, "turns": [TURN, {"new_tokens": 5, "answer_tokens": 2}]}


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_a_turn_sends_all_before_it_and_what_is_new(tmp_path):
    (found,) = read_sessions(write(tmp_path / "s.jsonl", ROW, ""))
    assert found == AgentSession([SessionTurn(7, 3, 0.5), SessionTurn(5, 2)], "a", 10)
    assert (found.prompts, found.context_tokens) == ([17, 25], 27)


@pytest.mark.parametrize(
    "row",
    [
        "{",
        "[]",
        {},
        ROW | {"turns": []},
        ROW | {"turns": [[]]},
        ROW | {"turns": {"new_tokens": 1}},
        ROW | {"prefix": 5},
        ROW | {"prefix": ""},
        ROW | {"prefix_tokens": -1},
        ROW | {"prefix_tokens": 10**8},
        ROW | {"turns": [TURN | {"new_tokens": 0}]},
        ROW | {"turns": [TURN | {"answer_tokens": True}]},
        ROW | {"turns": [TURN | {"wait_s": -1}]},
        ROW | {"turns": [TURN | {"wait_s": "1"}]},
        json.dumps(ROW).replace("0.5", "NaN"),
        ROW | {"turns": [TURN | {"new_tokens": 6_000_000}] * 2},
    ],
)
def test_a_wrong_session_is_named_in_one_sentence(tmp_path, row):
    with pytest.raises(UserError, match="line 2: must be a JSON object such as") as refusal:
        read_sessions(write(tmp_path / "s.jsonl", ROW, row))
    assert "\n" not in str(refusal.value)


def test_a_file_that_holds_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read the sessions"):
        read_sessions(tmp_path / "none")
    with pytest.raises(UserError, match="holds no sessions"):
        read_sessions(write(tmp_path / "empty", ""))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="no JSONL"):
        read_sessions(tmp_path / "binary")


def test_sessions_made_here_have_the_published_medians_and_come_back_from_their_file(tmp_path):
    made = [generate_session(Random(f"s {one}"), 33, 80_000, 2.0) for one in range(20)]
    write_sessions(tmp_path / "made.jsonl", made)
    assert [asdict(one) for one in read_sessions(tmp_path / "made.jsonl")] == list(
        map(asdict, made)
    )
    for session in made:
        assert session.context_tokens == 80_000 and len(session.turns) == 33
        assert session.prompts == sorted(session.prompts)
    prompts = sum(sum(one.prompts) for one in made)
    answered = sum(turn.answer_tokens for one in made for turn in one.turns)
    new = sum(turn.new_tokens for one in made for turn in one.turns)
    assert prompts / answered == pytest.approx(IN_FOR_ONE_OUT, rel=0.05)
    assert 0.92 <= 1 - new / prompts <= 0.965
