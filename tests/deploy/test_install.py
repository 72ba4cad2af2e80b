"""install.sh for real, from a wheel of this checkout, without the network: install, repair, remove.

The wheel is put together here because a build would need its backend from the network, and stands
beside an empty `torch`; what MoLink depends on is borrowed from the environment that runs the test.
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
    "targets"
]["wheel"]["packages"]
MADE = {".local/share/molink", ".local/share/molink/venv", ".local/bin/molink"}
COORDINATORS = {"molink_sim", "screen.py"}
"""What stands beside `molink` where --coordinator was said, here."""


PINNED = {
    "requirements.lock": ("library", "1.0"),
    "extras.lock": ("screen", "1.0"),
    "torch.lock": ("torch", "2.13.0"),
}
"""What the lists of pinned packages name here."""


def write_wheel(directory: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    stem = f"{name}-{version}"
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[console_scripts]\nmolink = molink.cli.main:main\n",
        "RECORD": "",
    }
    wheel = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        for path, text in about.items():
            archive.writestr(f"{stem}.dist-info/{path}", text)
    return wheel


def sources() -> dict[str, bytes]:
    """What the installed environment needs: our code, and a way to the libraries of this one."""
    files = {"borrowed.pth": sysconfig.get_paths()["purelib"].encode()}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            files[str(file.relative_to((ROOT / package).parent))] = file.read_bytes()
    return files


def locks(wheels: Path) -> dict[str, bytes]:
    """As `make lock` writes them, of what lies in `wheels`."""
    files = {}
    for lock, (name, version) in PINNED.items():
        wheel = wheels / f"{name}-{version}-py3-none-any.whl"
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text = f"# Made.\n{name}=={version} \\\n    --hash=sha256:{digest}\n"
        files[f"molink/{lock}"] = text.encode()
    return files


@pytest.fixture
def offline(sandbox, tmp_path):
    """A sandbox with a real Python, and the environment that makes pip look only here."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, version in PINNED.values():
        write_wheel(wheels, name, version, {f"{name}.py": b""})
    sandbox.fake("python3", f'exec "{sys.executable}" "$@"')
    environment = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_FIND_LINKS": str(wheels)}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_COMPILE": "1"}
    return sandbox, environment


def test_install_repair_and_remove(offline, tmp_path):
    sandbox, environment = offline
    wheel = write_wheel(tmp_path, "molink", "9.8.7", sources() | locks(tmp_path / "wheels"))
    done = sandbox.run("--from", wheel, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "molink agent join INVITE" in done.stdout
    assert 'export PATH="$HOME/.local/bin:$PATH"' in done.stdout
    assert sandbox.made() >= MADE
    assert not [path for path in sandbox.made() if "tmp." in path]
    assert runs(sandbox)
    assert (sandbox.home / ".local/share/molink/venv/torch-index").read_text().endswith("/cpu")
    assert not beside(sandbox) & COORDINATORS

    write_wheel(tmp_path, "molink_sim", "9.8.7", {"molink_sim/__init__.py": b""})
    new = {"molink_agent/new.py": b'"""New."""'}
    write_wheel(tmp_path, "molink", "9.8.7", sources() | locks(tmp_path / "wheels") | new)
    again = sandbox.run("--from", wheel, "--coordinator", **environment)
    assert again.returncode == 0, again.stdout + again.stderr
    assert beside(sandbox) >= COORDINATORS
    assert any(path.endswith("molink_agent/new.py") for path in sandbox.made())

    agent = sandbox.home / ".local/share/molink-agent"
    agent.mkdir()
    removed = sandbox.run("--uninstall")
    assert removed.returncode == 0
    assert f"kept {agent}" in removed.stdout
    assert not sandbox.made() & MADE
    assert sandbox.run("--uninstall", "--purge").returncode == 0
    assert not agent.exists()


def test_a_wheel_over_a_release_is_no_release(offline, tmp_path):
    sandbox, environment = offline
    root = sandbox.home / ".local/share/molink"
    (root / "current").mkdir(parents=True)
    (root / "release").write_text("https://host.example\n9.9.0\n")
    wheel = write_wheel(tmp_path, "molink", "9.8.7", sources() | locks(tmp_path / "wheels"))
    done = sandbox.run("--from", wheel, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (root / "release").exists() and not (root / "current").exists()


def test_what_has_another_checksum_is_not_installed(offline, tmp_path):
    sandbox, environment = offline
    wheel = write_wheel(tmp_path, "molink", "9.8.7", sources() | locks(tmp_path / "wheels"))
    write_wheel(tmp_path / "wheels", "library", "1.0", {"evil.py": b"1"})
    done = sandbox.run("--from", wheel, **environment)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (sandbox.home / ".local/bin/molink").exists()


def beside(sandbox) -> set[str]:
    """What the environment holds."""
    (place,) = (sandbox.home / ".local/share/molink/venv/lib").glob("python*/site-packages")
    return {path.name for path in place.iterdir()}


def runs(sandbox) -> bool:
    """Whether the link starts the installed code."""
    command = [sandbox.home / ".local/bin/molink", "--version"]
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.returncode == 0 and done.stdout.startswith("molink")


def test_what_cannot_be_had_ends_with_a_sentence_and_leaves_no_link(offline, tmp_path):
    sandbox, environment = offline
    sandbox.fake("python3", 'case "$*" in *" venv "*) echo broken >&2; exit 1;; esac; exit 0')
    wheel = write_wheel(tmp_path, "molink", "9.8.7", locks(tmp_path / "wheels"))
    done = sandbox.run("--from", wheel, **environment)
    assert done.returncode != 0
    assert "Run it again to go on" in done.stderr
    assert not (sandbox.home / ".local/bin/molink").exists()
    assert not [path for path in sandbox.made() if "tmp." in path]


def test_pipx_keeps_the_environment_when_asked(offline, tmp_path):
    sandbox, environment = offline
    sandbox.fake("pipx", 'printf "%s\\n" "$*" >>"$HOME/pipx.log"')
    wheel = write_wheel(tmp_path, "molink", "9.8.7", locks(tmp_path / "wheels"))
    done = sandbox.run("--pipx", "--from", wheel, **environment)
    assert done.returncode == 0, done.stderr
    assert sandbox.run("--uninstall").returncode == 0
    log = (sandbox.home / "pipx.log").read_text().splitlines()
    assert log[0].startswith("install --force --python")
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in log[0]
    assert "--constraint " in log[0]
    assert log[0].endswith(str(wheel))
    assert log[1] == "uninstall molink"


def test_pipx_keeps_what_a_coordinator_has_beside_and_each_upgrade_too(offline, tmp_path):
    sandbox, environment = offline
    sandbox.fake("pipx", 'printf "%s\\n" "$*" >>"$HOME/pipx.log"')
    wheel = write_wheel(tmp_path, "molink", "9.8.7", locks(tmp_path / "wheels"))
    simulator = write_wheel(tmp_path, "molink_sim", "9.8.7", {})
    for words in (("--coordinator",), ()):
        done = sandbox.run("--pipx", "--from", wheel, *words, **environment)
        assert done.returncode == 0, done.stderr
        installed, injected = (sandbox.home / "pipx.log").read_text().splitlines()
        assert installed.endswith(f"{wheel}[dashboard,import]")
        assert injected.startswith("inject --force --pip-args=--constraint ")
        assert injected.endswith(f"molink {simulator}")
        (sandbox.home / "pipx.log").unlink()
    assert sandbox.run("--uninstall").returncode == 0
    assert not sandbox.made() & MADE


def test_the_source_archive_carries_what_installs_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"deploy", "windows"} <= set(included)


def test_services_go_too_but_only_ours(sandbox):
    units = sandbox.home / ".config/systemd/user"
    units.mkdir(parents=True)
    ours, other = units / "molink-agent-1a2b3c4d.service", units / "molink-agent.service"
    ours.write_text("# Made by molink agent service install\n[Unit]\n")
    other.write_text("[Unit]\n")
    sandbox.fake("systemctl", 'printf "%s\\n" "$*" >>"$HOME/systemctl.log"')
    assert sandbox.run("--uninstall").returncode == 0
    assert other.exists()
    assert not ours.exists()
    log = (sandbox.home / "systemctl.log").read_text()
    assert log == f"--user disable --now {ours.name}\n--user daemon-reload\n"


def test_a_coordinators_service_and_the_tray_go_too(sandbox):
    config = sandbox.home / ".config"
    unit = config / "systemd/user/molink-coordinator.service"
    tray = config / "autostart/molink-agent-tray.desktop"
    for file in (unit, tray):
        file.parent.mkdir(parents=True)
    unit.write_text("# Made by molink service install: changes are lost when it runs again.\n")
    tray.touch()
    sandbox.fake("systemctl", 'printf "%s\n" "$*" >>"$HOME/systemctl.log"')
    assert sandbox.run("--uninstall").returncode == 0
    assert not unit.exists() and not tray.exists()
    assert f"disable --now {unit.name}" in (sandbox.home / "systemctl.log").read_text()


def test_what_a_coordinator_keeps_is_never_removed_with_the_programs(sandbox):
    kept = sandbox.home / ".local/share/molink"
    (kept / "venv").mkdir(parents=True)
    (kept / "registry.db").touch()
    done = sandbox.run("--uninstall", "--purge")
    assert done.returncode == 0
    assert f"note     kept {kept}: the keys, invites and members" in done.stdout
    assert [file.name for file in kept.iterdir()] == ["registry.db"]
