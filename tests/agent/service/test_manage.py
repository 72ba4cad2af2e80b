"""Installing and removing with a systemctl of the tests' own, which keeps a log."""

import dataclasses
import sys
from pathlib import Path

import pytest

from molink.errors import UserError
from molink.systemd import user_service
from molink.systemd.user_service import Surroundings
from molink_agent.service.manage import (
    agent_service,
    install_service,
    remove_service,
    service_status,
)
from tests.systemd.desk import made_desk

PLAIN = Surroundings(wsl=False, container=False, systemd_booted=False, user="ada", user_id=1000)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return made_desk(tmp_path, monkeypatch, "molink-agent")


def test_install_writes_enables_and_starts(desk):
    sentences = install_service(desk.data_dir)
    text = desk.unit.read_text()
    assert f'"agent" "run" "--data-dir" "{desk.data_dir}"' in text
    assert f'ExecStart="{Path(sys.executable).parent}' in text
    unit = desk.unit.name
    assert desk.asked()[1:] == ["daemon-reload", f"enable {unit}", f"restart {unit}"]
    assert "loginctl enable-linger" in " ".join(sentences)


def test_where_users_have_no_namespaces_it_is_said_and_the_rest_of_the_sandbox_holds(desk):
    install_service(desk.data_dir)
    assert "ProtectSystem=strict" in desk.unit.read_text()
    assert "--property=PrivateUsers=yes" in desk.asked("systemd-run")[0]
    desk.program("systemd-run", "echo 'Failed to set up user namespacing' >&2; exit 1")
    sentences = install_service(desk.data_dir)
    assert "gives users no namespaces" in sentences[-1]
    text = desk.unit.read_text()
    assert "ProtectSystem" not in text and "SystemCallFilter" in text


def test_installing_twice_changes_nothing_more(desk):
    install_service(desk.data_dir)
    text = desk.unit.read_text()
    desk.program("loginctl", "echo Linger=yes")
    assert "It goes on when you log out." in install_service(desk.data_dir)
    assert desk.unit.read_text() == text


def test_in_wsl_the_service_does_not_suffice_and_it_says_so(desk, monkeypatch):
    monkeypatch.setattr("platform.release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    assert "WSL ends it seconds after" in install_service(desk.data_dir)[-1]


def test_two_agents_of_one_account_are_two_services(desk):
    install_service(desk.data_dir)
    install_service(desk.home / "second")
    assert len(list(desk.unit.parent.glob("*.service"))) == 2
    remove_service(desk.home / "second")
    assert list(desk.unit.parent.glob("*.service")) == [desk.unit]


def test_remove_takes_everything_back(desk):
    install_service(desk.data_dir)
    assert remove_service(desk.data_dir) == ["molink-agent.service is stopped and removed."]
    assert not desk.unit.exists()
    assert "disable --now molink-agent.service" in desk.asked()
    assert remove_service(desk.data_dir) == ["There is no service molink-agent.service."]


def test_remove_works_when_systemd_has_gone(desk):
    install_service(desk.data_dir)
    desk.program("systemctl", "echo 'Failed to connect to bus' >&2; exit 1")
    (sentence,) = remove_service(desk.data_dir)
    assert "Failed to connect to bus" in sentence
    assert not desk.unit.exists()


def test_somebody_elses_unit_is_left_alone(desk):
    desk.unit.parent.mkdir(parents=True)
    desk.unit.write_text("[Unit]\n")
    for change in (install_service, remove_service):
        with pytest.raises(UserError, match="is not ours"):
            change(desk.data_dir)
    assert desk.unit.read_text() == "[Unit]\n"


def test_without_a_manager_nothing_is_written(desk):
    desk.program("systemctl", "echo 'Failed to connect to bus' >&2; exit 1")
    with pytest.raises(UserError, match="`molink agent run` in a terminal"):
        install_service(desk.data_dir)
    assert not desk.unit.exists()


def test_what_systemd_refuses_is_said_with_its_reason(desk):
    desk.program("systemctl", 'case "$*" in *restart*) echo "Job failed." >&2; exit 1;; esac')
    with pytest.raises(UserError, match=r"Job failed\. `journalctl --user -u"):
        install_service(desk.data_dir)


def test_status_reads_what_systemd_says(desk):
    install_service(desk.data_dir)
    said = (
        "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nResult=success\nNRestarts=3"
    )
    desk.program("systemctl", f"echo '{said}'")
    status = service_status(desk.data_dir)
    assert (status.installed, status.enabled, status.active, status.restarts) == (True,) * 3 + (3,)
    assert not status.lingering
    assert not status.problem
    desk.program("systemctl", "printf 'ActiveState=failed\\nResult=exit-code\\nNRestarts=\\n'")
    failed = service_status(desk.data_dir)
    assert not failed.active
    assert "(exit-code): `journalctl --user" in failed.problem


def test_status_of_what_is_not_installed_says_how(desk):
    desk.program("systemctl", "echo UnitFileState=; exit 0")
    status = service_status(desk.data_dir)
    assert not status.installed
    assert "molink agent service install" in status.problem


def test_status_without_systemd_never_raises(desk, monkeypatch):
    install_service(desk.data_dir)
    for program in ("systemctl", "loginctl"):
        (desk.bin / program).unlink()
    monkeypatch.setenv("PATH", str(desk.bin))
    assert "`molink agent run`" in service_status(desk.data_dir).problem


def test_a_manager_that_hangs_is_given_up(desk, monkeypatch):
    desk.program("systemctl", "exec sleep 30")
    assert user_service._ask_systemctl("show", timeout_s=0.2).code == user_service.EXIT_TOO_LATE


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        ({"wsl": True}, "/etc/wsl.conf, run `wsl --shutdown`"),
        ({"container": True}, "Let it run `molink agent run` as its own command"),
        ({"systemd_booted": True}, "export XDG_RUNTIME_DIR=/run/user/1000"),
        ({"systemd_booted": True, "wsl": True}, "sudo loginctl enable-linger ada"),
        ({}, "its own service manager"),
    ],
)
def test_each_surrounding_has_its_remedy(changed, remedy):
    sentence = agent_service(Path("/data")).why_no_manager(dataclasses.replace(PLAIN, **changed))
    assert remedy in sentence
    assert "`molink agent run` in a terminal" in sentence


def test_a_login_without_a_way_to_the_bus_is_given_one(tmp_path):
    found = user_service._environment({"A": "b"}, tmp_path)
    assert found["XDG_RUNTIME_DIR"] == str(tmp_path)
    kept = user_service._environment({"XDG_RUNTIME_DIR": "/x"}, tmp_path)
    assert kept["XDG_RUNTIME_DIR"] == "/x"
    assert "XDG_RUNTIME_DIR" not in user_service._environment({}, tmp_path / "none")
