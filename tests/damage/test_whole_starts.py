"""Whole programs that start again beside damaged files: they serve, or end with one sentence."""

import logging
import os
import subprocess

import pytest

from molink.api.server import free_ports
from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from molink.control.registry.registry import Registry
from molink.coordinator.start import start_coordinator
from molink.errors import UserError
from molink_agent.daemon.agent_log import LOG_FILE, logged
from molink_agent.data_files import MEMBERSHIP_FILE
from tests.agent.daemon.agents import membership
from tests.damage.kept_files import (
    make_identity,
    make_ledger,
    make_limits,
    make_live,
    make_registry,
)
from tests.damage.test_damage_matrix import WITHOUT_RIGHTS, of_another_owner
from tests.end_to_end.command_line import command_line

# -- a coordinator --------------------------------------------------------------------------------


async def members_after_a_start(folder) -> list[str]:
    broker, relay, api, agents = free_ports("127.0.0.1", 4)
    local = {"host": "127.0.0.1", "public_host": "127.0.0.1", "broker": "embedded"}
    ports = {"broker_port": broker, "relay_port": relay}
    settings = settings_of(UpSettings, model="demo", data_dir=folder, **ports, **local)
    async with start_coordinator(settings, api, agents) as coordinator:
        return [node.name for node in coordinator.registry.list_nodes()]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "kept" / "coordinator"
    folder.mkdir(parents=True)
    for make in (make_registry, make_live, make_ledger):
        make(folder)
    return folder


async def test_a_coordinator_starts_beside_what_may_be_lost(data, caplog):
    for name in ("live.sqlite", "ledger.sqlite"):
        os.truncate(data / name, 5000)
    assert await members_after_a_start(data) == ["anna"]
    aside = {one.name.partition(".damaged")[0] for one in data.iterdir() if "damaged" in one.name}
    assert aside == {"live.sqlite", "ledger.sqlite"}


async def test_a_coordinator_goes_on_from_the_copy_that_it_names(data):
    copy = data / "registry.db.copy"
    copy.unlink()
    Registry.open(data).close()  # A day later.
    os.truncate(data / "registry.db", 0)
    with pytest.raises(UserError, match=r"put .*registry\.db\.copy in its place"):
        await members_after_a_start(data)
    copy.replace(data / "registry.db")
    assert await members_after_a_start(data) == ["anna"]


# -- an agent -------------------------------------------------------------------------------------

RUN = ("agent", "run", "--data-dir")


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "kept" / "agent"
    folder.mkdir(parents=True)
    make_identity(folder)
    make_limits(folder)
    path = folder / MEMBERSHIP_FILE
    path.touch(mode=0o600)
    path.write_text(membership().model_dump_json())
    return folder


def said_at_the_end(command) -> str:
    """What an agent says that cannot start."""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and run.stderr.count("\n") == 1, run.stderr
    return run.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("identity.json", "is no key file any more: put back a copy, or delete it"),
        ("limits.toml", "is not valid TOML (its end is missing): correct it, or remove it"),
        ("options.json", "is damaged: delete it, and give your options again"),
    ],
)
def test_an_agent_says_which_file_is_emptied(home, name, says):
    (home / name).write_bytes(b"")
    assert f"{home / name} {says}" in said_at_the_end(command_line(*RUN, str(home), forks=True))


def test_an_agent_says_whose_log_it_cannot_write(home):
    (home / LOG_FILE).touch()
    of_another_owner(home / LOG_FILE, home)
    rights = WITHOUT_RIGHTS if os.geteuid() == 0 else ()
    said = said_at_the_end([*rights, *command_line(*RUN, str(home))])
    assert f"{home / LOG_FILE} cannot be written (Permission" in said


def test_a_log_on_a_full_disk_disturbs_nobody(tmp_path, capsys):
    (tmp_path / LOG_FILE).symlink_to("/dev/full")
    with logged(tmp_path, Listener()):
        logging.getLogger("molink_agent").info("something")
    assert capsys.readouterr().err == ""


class Listener:
    def event(self, sentence):
        pass

    status = event
