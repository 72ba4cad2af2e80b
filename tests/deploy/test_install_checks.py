"""install.sh says what is missing and how to get it, and changes nothing before all is there."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from molink.hardware.torch_builds import build_for

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "deploy" / "install.sh"
DISTRIBUTIONS = ("molink", "molink_sim")
WSL2 = "5.15.153.1-microsoft-standard-WSL2"
WSL1 = "4.4.0-22621-Microsoft"


def said(done, kind: str) -> str:
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith(kind))


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_is_read_by_any_shell(shell):
    subprocess.run([shell, "-n", str(INSTALL)], check=True)


def test_a_pc_with_everything_passes_and_nothing_is_made(sandbox):
    sandbox.fake_python()
    done = sandbox.run("--check")
    assert done.returncode == 0, done.stdout
    assert "ok       nothing is missing" in done.stdout
    assert "installs from " + str(ROOT) in done.stdout
    assert not sandbox.made()


@pytest.mark.parametrize(
    ("manager", "remedy"),
    [
        ("apt-get", "sudo apt install python3 python3-venv"),
        ("dnf", "sudo dnf install python3.12"),
        ("pacman", "sudo pacman -S python"),
        ("apk", "your system's package manager"),
    ],
)
def test_a_missing_python_is_had_from_the_distribution(sandbox, manager, remedy):
    sandbox.fake(manager, "exit 0")
    done = sandbox.run()
    assert done.returncode == 2
    assert "Python 3.11 or newer" in said(done, "missing")
    assert remedy in said(done, "missing")
    assert "nothing was changed" in done.stderr
    assert not sandbox.made()


def test_an_old_python3_is_passed_over_for_a_newer_one(sandbox):
    sandbox.fake_python(too_old=1)
    assert "Python 3.11" in said(sandbox.run("--check"), "missing")
    sandbox.fake_python(name="python3.12")
    done = sandbox.run("--check")
    assert done.returncode == 0
    assert str(sandbox.bin / "python3.12") in said(done, "ok")


def test_the_python_asked_for_is_the_one_that_is_judged(sandbox):
    sandbox.fake_python()
    sandbox.fake_python(too_old=1, name="mine")
    assert "(mine is not)" in said(sandbox.run("--check", "--python", "mine"), "missing")


def test_debian_without_venv_is_told_the_package_of_its_python(sandbox):
    sandbox.fake_python(without_venv=1)
    sandbox.fake("apt-get", "exit 0")
    assert "sudo apt install python3.12-venv" in said(sandbox.run("--check"), "missing")


@pytest.mark.parametrize("gpu", [False, True])
def test_a_full_disk_is_said_with_what_is_lacking(sandbox, gpu):
    sandbox.fake_python()
    sandbox.fake_disk(free_mib=1_000)
    if gpu:
        sandbox.fake_gpu("581.29, 8.9")
    needed = 12288 if gpu else 3072
    missing = said(sandbox.run("--check"), "missing")
    assert f"{needed - 1000} MiB of disk" in missing
    assert f"({needed} needed, 1000 free)" in missing


def test_an_upgrade_needs_no_room_for_a_torch_that_is_there(sandbox):
    sandbox.fake_python()
    sandbox.fake_disk(free_mib=2_000)
    venv = sandbox.home / ".local/share/molink/venv"
    venv.mkdir(parents=True)
    (venv / "torch-index").write_text("torch==2.13.0 https://download.pytorch.org/whl/cpu")
    assert sandbox.run("--check", "--torch", "cpu").returncode == 0
    assert "MiB of disk" in said(sandbox.run("--check", "--torch", "cuda"), "missing")


@pytest.mark.parametrize(
    ("gpus", "index"),
    [
        (("581.29, 8.9",), "PyPI"),
        (("581.29, 6.1", "581.29, 12.0"), "PyPI"),
        (("580.65, 6.1",), "https://download.pytorch.org/whl/cu126"),
        (("550.127.05, 8.6",), "https://download.pytorch.org/whl/cu126"),
        (("470.57, 7.5",), "https://download.pytorch.org/whl/cpu"),
        (("575.51, 12.0",), "https://download.pytorch.org/whl/cpu"),
        (("575.51, 8.6", "575.51, 12.0"), "https://download.pytorch.org/whl/cu126"),
        (("535.54, 3.5",), "https://download.pytorch.org/whl/cpu"),
        (("something odd",), "https://download.pytorch.org/whl/cpu"),
        ((), "https://download.pytorch.org/whl/cpu"),
    ],
)
def test_torch_suits_the_driver_and_the_best_gpu(sandbox, gpus, index):
    sandbox.fake_python()
    if gpus:
        sandbox.fake_gpu(*gpus)
    done = sandbox.run("--check")
    assert done.returncode == 0
    assert re.search(f"torch for [a-z0-9]+ from {re.escape(index)}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("driver", [500, 525, 579, 580, 600])
@pytest.mark.parametrize("capability", [(3, 5), (6, 1), (7, 5), (8, 6), (8, 9), (9, 0), (12, 0)])
def test_the_build_is_the_one_that_has_the_card_s_code(sandbox, capability, driver):
    """By the table that stages and the doctor go by."""
    build = build_for(capability, driver)
    sandbox.fake_python()
    sandbox.fake_gpu(f"{driver}.1, {capability[0]}.{capability[1]}")
    wanted = "cpu" if build is None else f"cuda{build.cuda.partition('.')[0]}"
    assert f"torch for {wanted} from" in sandbox.run("--check").stdout


@pytest.mark.parametrize("kernel", ["6.1.0", WSL2])
def test_a_card_newer_than_its_driver_s_torch_is_told_the_driver(sandbox, kernel):
    sandbox.fake_python()
    sandbox.fake_uname(kernel)
    sandbox.fake_gpu("575.51, 12.0")
    told = said(sandbox.run("--check"), "note")
    assert "update the driver to 580 or newer" in told
    assert ("in Windows (never inside WSL)" in told) == (kernel == WSL2)


@pytest.mark.parametrize("gpu", [False, True])
def test_who_lends_a_card_is_told_of_the_compiler_that_kernels_need(sandbox, gpu):
    sandbox.fake_python()
    sandbox.fake("apt-get", "exit 0")
    if gpu:
        sandbox.fake_gpu("581.29, 8.9")
    assert ("sudo apt install gcc python3-dev" in said(sandbox.run("--check"), "note")) == gpu
    sandbox.fake("gcc", "exit 0")
    assert "computes slower" not in said(sandbox.run("--check"), "note")


def test_what_is_asked_for_goes_before_what_was_found(sandbox):
    sandbox.fake_python()
    sandbox.fake_gpu("581.29, 8.9")
    assert "torch for cpu from https" in sandbox.run("--check", "--torch", "cpu").stdout
    done = sandbox.run("--check", "--torch-index", "https://example.org/simple")
    assert "torch for cuda13 from https://example.org/simple" in done.stdout


def test_other_processors_take_pypis_torch(sandbox):
    sandbox.fake_python()
    sandbox.fake_uname("6.1.0", machine="aarch64")
    assert "torch for cpu from PyPI" in sandbox.run("--check").stdout


def test_a_gpu_without_a_driver_and_a_driver_that_fails_are_told_apart(sandbox):
    sandbox.fake_python()
    sandbox.fake("pacman", "exit 0")
    assert "for a GPU: sudo pacman -S nvidia-open" in said(sandbox.run("--check"), "note")
    sandbox.fake("lspci", "echo '01:00.0 VGA compatible controller: NVIDIA GA102'")
    assert "there is an NVIDIA GPU but no driver" in said(sandbox.run("--check"), "note")
    sandbox.fake("nvidia-smi", "echo 'Driver/library version mismatch' >&2; exit 18")
    assert "restart the PC" in said(sandbox.run("--check"), "note")


def test_wsl1_cannot_be_used(sandbox):
    sandbox.fake_python()
    sandbox.fake_uname(WSL1)
    done = sandbox.run("--check", WSL_DISTRO_NAME="Debian")
    assert done.returncode == 2
    assert "wsl --set-version Debian 2" in said(done, "missing")


def test_wsl2_takes_its_driver_from_windows(sandbox):
    sandbox.fake_python()
    sandbox.fake_uname(WSL2)
    done = sandbox.run("--check")
    assert done.returncode == 0
    assert "ok       WSL2" in done.stdout
    assert "in Windows (never inside WSL)" in said(done, "note")
    without_systemd = not Path("/run/systemd/system").is_dir()
    assert ("systemd=true into /etc/wsl.conf" in said(done, "note")) == without_systemd


def test_somebody_elses_molink_is_not_overwritten(sandbox):
    sandbox.fake_python()
    link = sandbox.home / ".local" / "bin" / "molink"
    link.parent.mkdir(parents=True)
    link.write_text("not ours")
    assert f"the name {link}" in said(sandbox.run("--check"), "missing")
    assert sandbox.run("--uninstall").returncode == 0
    assert link.read_text() == "not ours"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--form", "x"), "no option --form"),
        (("--from",), "--from needs a value"),
        (("--torch", "rocm"), "--torch takes auto, cpu or cuda, got rocm"),
        (("--purge",), "--purge goes with --uninstall"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(sandbox, arguments, sentence):
    done = sandbox.run(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not sandbox.made()


def test_a_source_that_is_none_is_refused(sandbox, tmp_path):
    sandbox.fake_python()
    (tmp_path / "other.whl.txt").write_text("")
    done = sandbox.run("--check", "--from", tmp_path / "other.whl.txt")
    assert "--from takes a checkout of MoLink or a wheel" in said(done, "missing")
    copied = tmp_path / "install.sh"
    copied.write_bytes(INSTALL.read_bytes())
    assert "say --from CHECKOUT" in said(sandbox.run("--check", script=copied), "missing")


def test_a_coordinators_simulator_comes_with_the_checkout_or_lies_beside_the_wheel(
    sandbox, tmp_path
):
    sandbox.fake_python()
    done = sandbox.run("--check", "--coordinator")
    assert f"ok       and the simulator from {ROOT / 'sim'}" in done.stdout
    wheel, simulator = (tmp_path / f"{name}-0.1.0-py3-none-any.whl" for name in DISTRIBUTIONS)
    wheel.touch()
    lacking = said(sandbox.run("--check", "--coordinator", "--from", wheel), "missing")
    assert f"the simulator at {simulator}" in lacking
    simulator.touch()
    assert sandbox.run("--check", "--coordinator", "--from", wheel).returncode == 0
    assert "and the simulator" not in sandbox.run("--check", "--from", wheel).stdout


def test_without_a_home_it_says_so(sandbox):
    assert "HOME is not set" in sandbox.run("--check", HOME="").stderr


def test_pipx_is_wanted_only_when_asked_for(sandbox):
    sandbox.fake_python()
    assert sandbox.run("--check").returncode == 0
    assert "pipx, which --pipx asks for" in said(sandbox.run("--check", "--pipx"), "missing")


def test_its_numbers_are_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    script = INSTALL.read_text()
    assert f"PYTHON_MINOR_MIN={project['requires-python'].removeprefix('>=3.')}\n" in script
