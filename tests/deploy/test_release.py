"""A release that is built, signed, installed over HTTP and upgraded; and what is no release."""

import re
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.cli.upgrade import _installed_protocol, order_of_starts
from molink.control.versions import own_protocols
from molink.errors import UserError
from tests.deploy.conftest import INSTALL, SCRIPT_S_MAX
from tests.deploy.test_install import locks, offline, runs, sources, write_wheel
from tools.release import SUMS, sign, write_sums

__all__ = ["offline"]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing."""


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """Two throwaway keys: the project's, and a stranger's."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "strange"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def release(tmp_path, keys):
    """A folder to fill, the URL at which it is served, and what fills it with a version."""
    folder = tmp_path / "release"
    folder.mkdir()

    def publish(version, key="ours"):
        for file in folder.iterdir():
            file.unlink()
        write_wheel(folder, "molink", version, sources() | locks(tmp_path / "wheels"))
        write_wheel(folder, "molink_sim", version, {"molink_sim/__init__.py": b""})
        shutil.copy(INSTALL, folder / "install.sh")
        write_sums(folder)
        sign(folder, keys / key)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}", publish
        server.shutdown()


@pytest.fixture
def signing(offline):
    """The sandbox of an installation, with ssh-keygen."""
    sandbox, environment = offline
    (sandbox.bin / "ssh-keygen").symlink_to("/usr/bin/ssh-keygen")
    return sandbox, environment


def stopped_at(line, places):
    """Exit code and words of an upgrade that is ended while it does what this line announces."""
    command = ["sh", str(INSTALL), "--upgrade"]
    with subprocess.Popen(
        command, env=places, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as upgrade:
        for said in upgrade.stdout:
            if said.startswith(line):
                upgrade.send_signal(signal.SIGTERM)
                break
        _, errors = upgrade.communicate(timeout=SCRIPT_S_MAX)
    return upgrade.returncode, errors


def test_a_release_is_installed_and_upgraded(signing, release, keys):
    (sandbox, environment), (folder, url, publish) = signing, release
    publish("9.8.7")
    key = ("--release-key", keys / "ours.pub")
    done = sandbox.run("--from", url, *key, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"release 9.8.7 at {url}, signed" in done.stdout and runs(sandbox)
    assert "is installed already" in sandbox.run("--upgrade", **environment).stdout

    publish("9.8.6")
    older = sandbox.run("--upgrade", **environment)
    assert older.returncode == 2 and "9.8.6, older than 9.8.7" in older.stderr

    publish("9.10.0")
    (folder / "molink-9.10.0-py3-none-any.whl").write_bytes(b"altered")
    altered = sandbox.run("--upgrade", **environment)
    assert altered.returncode == 2 and "is not what was signed" in altered.stderr

    publish("9.10.0")
    with (folder / "install.sh").open("a") as longer:
        longer.write("\necho it reads on in a script that was changed beneath it\n" * 400)
    (folder / f"{SUMS}.sig").unlink()
    write_sums(folder)
    sign(folder, keys / "ours")
    places = {"HOME": str(sandbox.home), "PATH": str(sandbox.bin), **environment}
    stopped, said = stopped_at("3 of 3", places)
    assert stopped == 130 and "did not finish" in said and "To go on: sh" in said
    assert (sandbox.home / ".local/share/molink/release").read_text() == f"{url}\n9.8.7\n"
    assert not list((sandbox.home / ".local/share/molink").glob("tmp.*"))

    command = [sandbox.home / ".local/bin/molink", "upgrade"]
    upgraded = subprocess.run(command, env=places, capture_output=True, text=True, check=False)
    assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
    assert (sandbox.home / ".local/share/molink/release").read_text() == f"{url}\n9.10.0\n"
    assert "reads on" not in upgraded.stdout and "in any order" in upgraded.stdout
    again = subprocess.run(command, env=places, capture_output=True, text=True, check=False)
    assert "is installed already" in again.stdout and "in any order" not in again.stdout

    def goes_back():
        done = subprocess.run([*command, "--back"], env=places, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return (sandbox.home / ".local/share/molink/release").read_text().split()[1]

    assert [goes_back(), goes_back(), goes_back()] == ["9.8.7", "9.10.0", "9.8.7"]
    assert runs(sandbox)
    sandbox.run("--uninstall")
    assert not (sandbox.home / ".local/share/molink").exists()


def test_an_upgrade_that_was_interrupted_can_be_gone_back_from(signing, release, keys):
    """pip has taken the old version away when the new one cannot be had: `molink` is gone."""
    (sandbox, environment), (_folder, url, publish) = signing, release
    publish("9.8.7")
    key = ("--release-key", keys / "ours.pub")
    assert sandbox.run("--from", url, *key, **environment).returncode == 0
    kept = sandbox.home / ".local/share/molink"
    none = sandbox.run("--back", script=kept / "install.sh", **environment)
    assert none.returncode == 2 and "no release is kept" in none.stderr

    publish("9.9.0")
    places = {"HOME": str(sandbox.home), "PATH": str(sandbox.bin), **environment}
    stopped, said = stopped_at("3 of 3", places)
    assert stopped == 130
    assert f"sh {kept}/install.sh --upgrade; to have the version of before" in said
    (kept / "venv/bin/molink").unlink(missing_ok=True)
    back = sandbox.run("--back", script=kept / "install.sh", **environment)
    assert back.returncode == 0, back.stdout + back.stderr
    assert (kept / "release").read_text() == f"{url}\n9.8.7\n" and runs(sandbox)
    assert sandbox.run("--upgrade", script=kept / "install.sh", **environment).returncode == 0
    assert (kept / "release").read_text() == f"{url}\n9.9.0\n"


@pytest.fixture
def ended_early(signing, release, keys, tmp_path):
    """Release 9.9.0 with 9.8.7 kept from before it, and a pip that does nothing, or fails while
    there is a file `full`: runs the installer in some way, and says what is remembered then."""
    (sandbox, environment), (_folder, url, publish) = signing, release
    publish("9.9.0")
    root = sandbox.home / ".local/share/molink"
    for name, version in (("current", "9.9.0"), ("before", "9.8.7")):
        (root / name).mkdir(parents=True)
        write_wheel(root / name, "molink", version, locks(tmp_path / "wheels"))
        write_wheel(root / name, "molink_sim", version, {})
        shutil.copy(INSTALL, root / name)
        (root / name / "version").write_text(f"{version}\n")
    shutil.copy(INSTALL, root)
    shutil.copy(keys / "ours.pub", root / "release-key")
    (root / "release").write_text(f"{url}\n9.9.0\n")
    (root / "venv/bin").mkdir(parents=True)
    fails = f'case "$*" in *--force-reinstall*) [ ! -f {root}/full ] ;; esac'
    for name, script in (("python", fails), ("molink", "echo molink")):
        (root / "venv/bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (root / "venv/bin" / name).chmod(0o755)

    def run(way, *, full=False):
        (root / "full").unlink(missing_ok=True)
        if full:
            (root / "full").touch()
        done = sandbox.run(way, script=root / "install.sh", **environment)
        assert (done.returncode == 0) is not full, done.stdout + done.stderr
        return done.stdout + done.stderr, (root / "release").read_text().split()[1]

    return root, run


def test_a_way_back_that_was_interrupted_is_gone_on_with(ended_early):
    root, run = ended_early
    for _ in range(2):
        said, remembered = run("--back", full=True)
        assert f"sh {root}/install.sh --back; to have the newest version: the same, --up" in said
        assert remembered == "9.9.0"
    assert run("--back")[1] == "9.8.7" and not (root / "unfinished").exists()


def test_a_way_back_that_was_interrupted_can_be_left(ended_early):
    _, run = ended_early
    run("--back", full=True)
    said, remembered = run("--upgrade")
    assert "is installed already" not in said and remembered == "9.9.0"
    assert "is installed already" in run("--upgrade")[0]


def test_an_upgrade_keeps_to_the_words_of_the_installation(ended_early):
    root, run = ended_early
    words = "cpu\nhttps://mirror.example/torch\n\n"
    (root / "wanted").write_text(words)
    said, _ = run("--back")
    assert "torch for cpu from https://mirror.example/torch" in said
    assert (root / "wanted").read_text() == words


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0.1.0+3.gbbb", "0.1.0+9.gaaa"),
        ("0.2.0rc1", "0.2.0"),
        ("0.2.0rc1", "0.2.0rc2"),
        ("0.9.0", "0.10.0"),
        ("0.1.0", "0.1.0+1.gaaa"),
    ],
)
def test_which_of_two_versions_is_older(tmp_path, older, newer):
    function = r"^is_newer\(\) \{\n.*?^\}\n"
    body = re.search(function, INSTALL.read_text(), re.DOTALL | re.MULTILINE)[0]
    lines = ["root=. release=here python=$1 version=$2", "ok() { :; }", "fail() { exit 2; }", body]

    def takes(installed, offered):
        (tmp_path / "release").write_text(f"here\n{installed}\n")
        command = ["sh", "-c", "\n".join([*lines, "is_newer"]), "sh", sys.executable, offered]
        return subprocess.run(command, cwd=tmp_path, check=False).returncode == 0

    assert takes(older, newer) and not takes(newer, older)


def test_the_way_back_from_half_an_upgrade_leads_to_what_ran(ended_early):
    root, run = ended_early
    (root / "unfinished").touch()
    said, _ = run("--upgrade", full=True)
    assert "the version of before: the same, --back" in said
    run("--back", full=True)
    assert run("--back")[1] == "9.9.0"
    assert (root / "before/version").read_text() == "9.8.7\n"


def test_a_folder_molink_where_one_types_is_not_the_installed_one(tmp_path, monkeypatch):
    (tmp_path / "molink").mkdir()
    (tmp_path / "molink" / "__init__.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert _installed_protocol() == own_protocols().newest


def test_the_order_of_starts_follows_from_the_protocols():
    assert "in any order" in order_of_starts(12, 12) and "any order" in order_of_starts(12, None)
    assert "protocol 13 and spoke 12" in order_of_starts(12, 13)


def test_what_runs_is_to_be_started_again_at_once():
    """It starts stages and plans from the files that the upgrade has replaced."""
    for now in (12, 13, None):
        assert "at once: stages and plans" in order_of_starts(12, now)


def test_what_is_no_release_of_ours_is_refused_before_anything_is_made(signing, release, keys):
    (sandbox, environment), (folder, url, publish) = signing, release
    ours = ("--release-key", keys / "ours.pub")

    def refused(*words):
        done = sandbox.run("--from", *words, **environment)
        assert done.returncode == 2 and sandbox.made() == set(), done.stdout + done.stderr
        return done.stdout

    publish("9.8.7", key="strange")
    assert "the key that signs releases: --release-key FILE" in refused(url)
    assert "a good signature" in refused(url, *ours)
    publish("9.8.7")
    (folder / SUMS).write_text((folder / SUMS).read_text().replace("9.8.7", "9.8.8"))
    assert "a good signature" in refused(folder, *ours)
    (folder / f"{SUMS}.sig").unlink()
    assert "cannot be fetched" in refused(url, *ours)


def test_a_checkout_is_upgraded_by_git():
    with pytest.raises(UserError, match=r"This is a checkout in .*: git pull there"):
        CliRunner().invoke(cli, ["upgrade"], catch_exceptions=False)
