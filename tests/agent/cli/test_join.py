"""Where the invite comes from, and where it does not stay."""

import importlib
import os
import sys

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_agent.cli import main

commands = importlib.import_module("molink_agent.cli.join")


@pytest.mark.parametrize("arguments", [["join"], ["join", "-"]])
def test_the_invite_is_read_from_a_pipe(tmp_path, arguments):
    with pytest.raises(UserError, match="end of this invite is missing"):
        CliRunner().invoke(
            main,
            [*arguments, "--data-dir", str(tmp_path)],
            input="molink1-\nabcd\n",
            catch_exceptions=False,
            env={"MOLINK_INVITE": None},
        )


@pytest.mark.parametrize(
    "program", [["/x/bin/molink"], ["-m", "molink.cli.main"], ["-X", "dev", "/x/bin/molink"]]
)
def test_an_agent_that_goes_on_holds_no_invite(tmp_path, monkeypatch, program):
    words = ["agent", "join", "molink1-secret", "--threads", "1"]
    became = []
    monkeypatch.setattr(sys, "argv", ["molink", *words])
    monkeypatch.setattr(sys, "orig_argv", ["python", *program, *words])
    monkeypatch.setenv("MOLINK_INVITE", "molink1-secret")
    monkeypatch.setattr(os, "execv", lambda path, command: became.append((path, command)))
    commands._become_run(tmp_path)
    expected = [sys.executable, *program, "agent", "run", "--data-dir", str(tmp_path)]
    assert became == [(sys.executable, expected)]
    assert "MOLINK_INVITE" not in os.environ
