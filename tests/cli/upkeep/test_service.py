"""`molink service` and `molink logs`, with a systemctl and a journalctl of the tests' own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.errors import UserError
from molink.systemd.coordinator_unit import ENVIRONMENT_FILE, MADE_BY, PASSED_ON, coordinator_unit
from tests.systemd.desk import made_desk

DATA, HUB = Path("/home/anna/.local/share/molink"), Path("/home/anna/.cache/huggingface")


@pytest.fixture
def desk(tmp_path, monkeypatch):
    for variable in (*PASSED_ON, "MOLINK_BROKER"):
        monkeypatch.delenv(variable, raising=False)
    return made_desk(tmp_path, monkeypatch, "molink-coordinator", "molink")


def run(*words: str):
    return CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)


def test_it_runs_molink_up_with_what_was_given(desk):
    said = run("service", "install", "demo", "--port", "8123", "--queue-s", "20").output
    text = desk.unit.read_text()
    words = '"up" "demo" "--port" "8123" "--queue-s" "20" "--data-dir"'
    assert f'{words} "{desk.data_dir}"' in text
    assert text.startswith(MADE_BY) and f"WorkingDirectory={Path.cwd()}" in text
    unit = desk.unit.name
    assert desk.asked()[1:] == ["daemon-reload", f"enable {unit}", f"restart {unit}"]
    assert "starts with your session" in said and "molink logs -f" in said
    assert (desk.home / ".cache/huggingface").is_dir(), "a sandbox cannot make it"


def test_a_new_data_folder_is_made_as_a_sandbox_cannot(desk):
    folder = desk.home / "new" / "folder"
    said = run("service", "install", "demo", "--data-dir", str(folder)).output
    assert folder.is_dir() and not folder.stat().st_mode & 0o077
    assert "was started as" in said and "molink service status" in said, "it may end at once"


def test_it_starts_with_the_environment_in_which_it_was_installed(desk, monkeypatch):
    hub, cache = desk.home / "big disk", desk.home / "cache"
    for name, value in (("HF_HOME", hub), ("HF_HUB_CACHE", cache), ("HF_TOKEN", 'a"\\b%c$d')):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MOLINK_BROKER", "mqtts://me:pass%21@host:8883")
    run("service", "install", "demo")
    unit, file = desk.unit.read_text(), desk.data_dir / ENVIRONMENT_FILE
    assert file.read_text() == (
        f'HF_HOME="{hub}"\nHF_HUB_CACHE="{cache}"\nHF_TOKEN="a\\"\\\\b%c$d"\n'
        'MOLINK_BROKER="mqtts://me:pass%21@host:8883"\n'
    )
    assert file.stat().st_mode & 0o777 == 0o600 and f"\nEnvironmentFile={file}\n" in unit
    assert f'ReadWritePaths=-"{hub}"\nReadWritePaths=-"{cache}"\n' in unit
    assert hub.is_dir() and cache.is_dir() and "pass" not in unit
    run("service", "remove")
    assert not file.exists() and desk.data_dir.is_dir()


@pytest.mark.parametrize("words", [("--broker", "mqtts://me:pass@host"), ("--broker=embedded",)])
def test_a_broker_that_is_given_stands_in_no_command(desk, monkeypatch, words):
    monkeypatch.setenv("MOLINK_BROKER", "mqtts://other:word@host")
    run("service", "install", "demo", *words, "--broker-port", "0")
    unit, file = desk.unit.read_text(), desk.data_dir / ENVIRONMENT_FILE
    assert '"up" "demo" "--broker-port" "0" "--data-dir"' in unit
    broker = words[-1].removeprefix("--broker=")
    assert file.read_text() == f'MOLINK_BROKER="{broker}"\n'


def test_what_no_service_can_hold_is_refused(desk, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a\nLD_PRELOAD=b")
    with pytest.raises(UserError, match="cannot hold"):
        run("service", "install", "demo")
    assert not desk.unit.exists()


def test_another_model_takes_the_place_of_what_ran(desk):
    run("service", "install", "demo")
    run("service", "install", "other")
    assert '"up" "other"' in desk.unit.read_text()
    assert len(list(desk.unit.parent.iterdir())) == 1


def test_each_data_folder_has_a_service_of_its_own(desk):
    run("service", "install", "demo")
    run("service", "install", "demo", "--data-dir", str(desk.home / "second"))
    assert len(list(desk.unit.parent.glob("molink-coordinator*.service"))) == 2
    run("service", "remove", "--data-dir", str(desk.home / "second"))
    assert list(desk.unit.parent.iterdir()) == [desk.unit]


@pytest.mark.parametrize("words", [(), ("demo", "--prot", "8000"), ("demo", "--port", "x")])
def test_what_molink_up_would_refuse_is_not_installed(desk, words):
    result = CliRunner().invoke(cli, ("service", "install", *words))
    assert result.exit_code == 2, result.output
    assert not desk.unit.exists()


def test_status_and_remove(desk):
    assert "`molink service install MODEL` does it" in run("service", "status").output
    run("service", "install", "demo")
    desk.program("systemctl", "printf 'ActiveState=active\\nUnitFileState=enabled\\n'")
    assert "molink-coordinator.service runs, starts by itself" in run("service", "status").output
    assert "is stopped and removed" in run("service", "remove").output
    assert not desk.unit.exists()


def test_without_systemd_it_says_what_does_the_same(desk):
    desk.program("systemctl", "exit 1")
    with pytest.raises(UserError, match="`molink up` in a terminal does the same"):
        run("service", "install", "demo")
    assert not (desk.data_dir / ENVIRONMENT_FILE).exists()


def test_logs_are_the_journals(desk):
    with pytest.raises(UserError, match="stands in its terminal"):
        run("logs")
    run("service", "install", "demo")
    desk.program("journalctl", "exit 0")
    command = [sys.executable, "-m", "molink.cli.main", "logs", "-f", "-n", "5"]
    subprocess.run(command, check=True)
    unit = desk.unit.name
    assert desk.asked("journalctl") == [f"--user --unit {unit} --lines 5 --output=cat --follow"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("isolated", [True, False])
def test_systemd_understands_every_line(tmp_path, isolated):
    unit = tmp_path / "molink-coordinator.service"
    command = [shutil.which("true"), "up", "a b%c$d"]
    here = tmp_path / "a b%c"
    unit.write_text(coordinator_unit(command, DATA, here, [HUB], isolated=isolated))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        check=False,
    )
    assert unit.name not in done.stderr, done.stderr
    assert done.returncode == 0


def test_it_writes_to_its_own_folder_and_the_hubs_alone():
    text = coordinator_unit(["/opt/molink"], DATA, Path("/srv"), [HUB])
    assert f'ReadWritePaths="{DATA}"\nReadWritePaths=-"{HUB}"' in text
    assert "ProtectSystem=strict" in text and "NoNewPrivileges=yes" in text
