"""Where the invite comes from, and where it does not stay."""

import importlib
import os
import socket
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from molink.control.messages.invites import Invite
from molink.errors import UserError
from molink_agent.cli import main
from molink_agent.data_files import AgentOptions
from molink_agent.doctor import gather
from molink_agent.doctor.facts import DoctorFacts, PortTrial, TorchAnswer
from molink_agent.probe import machine
from molink_agent.probe.machine import Wsl
from molink_agent.windows import ports
from tests.agent.pcs import CARD, ONE_CARD, pc

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


def test_a_pc_whose_agent_runs_does_not_join_beneath_it(tmp_path, monkeypatch):
    async def runs(where):
        return True

    invite = Invite.make("https://10.0.0.1:8003", bytes(32)).text
    monkeypatch.setattr(commands, "agent_runs", runs)
    with pytest.raises(UserError, match=r"An agent runs from .* already"):
        words = ["join", invite, "--data-dir", str(tmp_path)]
        CliRunner().invoke(main, words, catch_exceptions=False)
    assert not (tmp_path / commands.KEY_FILE).exists()


@pytest.mark.parametrize(
    ("words", "before", "name"),
    [((), None, "host"), ((), "anna", "anna"), (("--name", "ben"), "anna", "ben")],
)
def test_who_joins_again_keeps_the_name(tmp_path, monkeypatch, words, before, name):
    """Another invite is no reason to be called otherwise."""
    asked = []

    async def join_cluster(invite, pair, shown_name, where):
        asked.append(shown_name)
        raise UserError("enough")

    kept = None if before is None else SimpleNamespace(name=before)
    monkeypatch.setattr("molink_agent.daemon.membership.load_membership", lambda where: kept)
    monkeypatch.setattr("molink_agent.daemon.membership.join_cluster", join_cluster)
    monkeypatch.setattr(commands, "_check_cards", lambda where: None)
    monkeypatch.setattr("platform.node", lambda: "host")
    invite = Invite.make("https://10.0.0.1:8003", bytes(32)).text
    CliRunner().invoke(main, ["join", invite, "--data-dir", str(tmp_path), *words])
    assert asked == [name]


def test_no_invite_at_all_is_told_so(tmp_path):
    with pytest.raises(UserError, match="No invite was given"):
        words = ["join", "--data-dir", str(tmp_path)]
        CliRunner().invoke(main, words, input="\n", catch_exceptions=False)


@pytest.mark.parametrize(
    "program", [["/x/bin/molink"], ["-m", "molink.cli.main"], ["-X", "dev", "/x/bin/molink"]]
)
def test_an_agent_that_goes_on_holds_no_invite(tmp_path, monkeypatch, program):
    words = ["agent", "join", "molink1-secret", "--threads", "1"]
    became = []
    monkeypatch.setattr(sys, "argv", ["molink", *words])
    monkeypatch.setattr(sys, "orig_argv", ["python", *program, *words])
    monkeypatch.setattr(os, "execv", lambda path, command: became.append((path, command)))
    commands._become_run(tmp_path)
    expected = [sys.executable, *program, "agent", "run", "--data-dir", str(tmp_path)]
    assert became == [(sys.executable, expected)]


def test_what_an_agent_starts_inherits_no_invite(tmp_path, monkeypatch):
    seen = []

    def parse(text):
        seen.append((text, os.environ.get("MOLINK_INVITE")))
        raise UserError("enough")

    monkeypatch.setattr("molink.control.messages.invites.Invite.parse", parse)
    environment = {"MOLINK_INVITE": "molink1-secret"}
    CliRunner().invoke(main, ["join", "--data-dir", str(tmp_path)], env=environment)
    assert seen == [("molink1-secret", None)]


def test_a_card_that_torch_cannot_use_keeps_the_pc_from_joining(tmp_path, monkeypatch):
    gpus = replace(ONE_CARD, gpus=(replace(CARD, name="RTX 5070", capability=(12, 0)),))
    torch = TorchAnswer("2.9.0", "12.6", ("RTX 5070",), architectures=("sm_86", "sm_90"))
    facts = DoctorFacts(machine=pc(), gpus=gpus, torch=torch, port=PortTrial(0))

    async def ask_cards(where):
        return facts if where == tmp_path else None

    monkeypatch.setattr(gather, "ask_cards", ask_cards)
    with pytest.raises(UserError, match=r"no code for RTX 5070.*Or lend the CPU: `molink agent"):
        commands._check_cards(tmp_path)
    commands._check_cards(tmp_path / "without")


def test_a_user_whose_data_have_no_place_is_told_in_a_sentence(tmp_path, monkeypatch):
    """As one whom nobody knows, whose home is `/`."""
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))
    monkeypatch.setattr("molink.control.messages.invites.Invite.parse", lambda text: text)
    with pytest.raises(
        UserError, match=r"molink-agent cannot be written \(.*give another --data-d"
    ):
        CliRunner().invoke(main, ["join", "molink1-x"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("kept", "wsl", "port"),
    [(None, None, 0), (None, Wsl(2), 27600), (9000, None, 9000), (0, Wsl(2), 27600), (0, None, 0)],
)
def test_the_data_port_of_one_who_names_none(tmp_path, monkeypatch, kept, wsl, port):
    async def read_wsl():
        return wsl

    monkeypatch.setattr(machine, "read_wsl", read_wsl)
    monkeypatch.setattr(gather, "try_port", lambda port, agent_runs: PortTrial(port))
    if kept is not None:
        AgentOptions(kept).save(tmp_path)
    assert commands._data_port(tmp_path) == port


def test_a_second_agent_in_wsl_takes_free_ports(tmp_path, monkeypatch):
    """All distributions share one network."""

    async def read_wsl():
        return Wsl(2)

    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        monkeypatch.setattr(machine, "read_wsl", read_wsl)
        monkeypatch.setattr(ports, "DATA_PORT", first.getsockname()[1])
        assert commands._data_port(tmp_path) == 0


def test_a_data_port_that_is_taken_keeps_the_pc_from_joining(tmp_path, monkeypatch):
    async def runs(where):
        return True

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        options = AgentOptions(holder.getsockname()[1])
        invite = Invite.make("https://10.0.0.1:8003", bytes(32)).text
        words = ["join", invite, "--data-dir", str(tmp_path), "--data-port"]
        with pytest.raises(UserError, match=r"Cannot listen at 0\.0\.0\.0:.* in use.*--data-port"):
            CliRunner().invoke(main, [*words, str(options.data_port)], catch_exceptions=False)
        assert not list(tmp_path.iterdir())
        monkeypatch.setattr(commands, "agent_runs", runs)
        commands._check_data_port(tmp_path, options)  # It is the agent's own.
    commands._check_data_port(tmp_path, AgentOptions())
