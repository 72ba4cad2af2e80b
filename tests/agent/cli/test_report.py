"""`molink agent report`, of a ledger that is there, of none, and for programs."""

import json
from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_agent.cli import main
from molink_agent.daemon.given import GIVEN_FILE, GivenLedger, Totals
from molink_agent.data_files import MEMBERSHIP_FILE
from molink_agent.thanks.fetched import Rank, Thanks

EVENING = datetime(2026, 11, 21, 22, 0)
TOTALS = Totals(uptime_s=7200, token_layers=1_234_567, bytes_sent=812_300_000)


@pytest.fixture
def home(tmp_path):
    """Of a member whose coordinator cannot be asked."""
    (tmp_path / MEMBERSHIP_FILE).write_text("{}")
    return tmp_path


@pytest.fixture
def nights(home):
    ledger = GivenLedger().later(EVENING, Totals()).later(EVENING, TOTALS)
    totals = Totals(**{key: 1.5 * value // 1 for key, value in TOTALS.model_dump().items()})
    ledger.later(EVENING + timedelta(days=2), totals).save(home)
    return home


def run(home, *words: str) -> str:
    words = ("report", *words, "--data-dir", str(home))
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_nights_are_rows(nights):
    assert run(nights).splitlines() == [
        "night              serving   tokens x layers          sent",
        "21 Nov to 22 Nov     2.0 h         1,234,567      812.3 MB",
        "23 Nov to 24 Nov     1.0 h           617,283      406.1 MB",
        "Since it joined: 3.0 h of serving, 1,851,850 tokens x layers, 1,218.5 MB sent",
    ]


def test_only_the_newest_are_shown(nights):
    assert [line[:6] for line in run(nights, "--nights", "1").splitlines()[1:-1]] == ["23 Nov"]


def test_programs_get_the_same_figures(nights):
    found = json.loads(run(nights, "--json"))
    assert found["since_joined"]["token_layers"] == 1_851_850
    assert found["nights"][0] == {
        "begins": "2026-11-21",
        **TOTALS.model_dump(),
    }


def test_nothing_given_yet_says_where_to_look(home):
    assert run(home) == (
        "This PC has given nothing yet: `molink agent status` says what it waits for.\n"
    )
    nothing = {"nights": [], "since_joined": None, "thanks": None}
    assert json.loads(run(home, "--json")) == nothing


def test_whom_it_has_helped_is_said_behind_the_nights(home):
    rank = Rank(name="anna", token_layers=8, is_you=True)
    counts = {"people": 3, "answers": 41, "cluster_people": 5, "cluster_answers": 60}
    Thanks(since_unix_s=datetime.now().timestamp(), ranking=(rank,), **counts).save(home)
    said = run(home)
    assert "this PC has helped 3 people with 41 answers" in said
    assert said.endswith("named:\n1. anna (this PC): 8 tokens x layers\n")
    assert json.loads(run(home, "--json"))["thanks"]["people"] == 3


def test_a_ledger_that_cannot_be_read_stays_and_is_named(home):
    (home / GIVEN_FILE).mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        run(home)
    assert (home / GIVEN_FILE).is_dir()


def test_a_pc_that_has_not_joined_or_has_left_is_told_how(tmp_path):
    (tmp_path / "identity.json").touch()
    with pytest.raises(UserError, match=r"or has left it \(\S+ holds no membership"):
        run(tmp_path)
