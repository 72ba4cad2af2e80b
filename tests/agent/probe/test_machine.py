"""Processor, memory, disk and battery, within what a container is allowed."""

from types import SimpleNamespace

import psutil
import pytest

from molink.hardware.host import ContainerLimits, container_limits
from molink_agent.probe.machine import (
    Wsl,
    cpu_facts,
    disk_free_bytes,
    read_machine,
    read_wsl,
    runs_on_battery,
    wsl_version,
)

CPUINFO = """\
processor\t: 0
model name\t: AMD Ryzen 7 7700
flags\t\t: fpu avx2 avx512_bf16

processor\t: 1
model name\t: AMD Ryzen 7 7700
flags\t\t: fpu avx2
"""


def test_this_machine_is_read(tmp_path):
    machine = read_machine(tmp_path)
    assert 1 <= machine.cpu_threads <= (psutil.cpu_count() or 1)
    assert 0 < machine.memory_available_bytes <= machine.memory_bytes
    assert machine.disk_free_bytes > 0


def test_a_container_is_as_large_as_it_may_be(tmp_path):
    allowed = ContainerLimits(memory_bytes=1_000, memory_used_bytes=400, cpus=0.5)
    machine = read_machine(tmp_path, allowed)
    assert (machine.memory_bytes, machine.memory_available_bytes) == (1_000, 600)
    assert machine.cpu_threads == 1


def test_control_groups_are_read(tmp_path):
    (tmp_path / "memory.max").write_text("2000\n")
    (tmp_path / "memory.current").write_text("1500\n")
    (tmp_path / "memory.stat").write_text("anon 900\ninactive_file 500\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert container_limits(tmp_path) == ContainerLimits(2000, 1000, 1.5)


@pytest.mark.parametrize("text", ["max\n", "", "-5\n", "²\n"])
def test_no_limit_is_no_limit(tmp_path, text):
    (tmp_path / "memory.max").write_text(text, encoding="utf-8")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert container_limits(tmp_path) == ContainerLimits()


def test_the_processor_is_named():
    assert cpu_facts(CPUINFO) == ("AMD Ryzen 7 7700", True)
    assert cpu_facts("flags : fpu")[1] is False


def test_the_disk_of_a_directory_that_is_not_there_yet(tmp_path):
    assert disk_free_bytes(tmp_path / "a" / "b") > 0


@pytest.mark.parametrize("plugged, on_battery", [(True, False), (False, True), (None, None)])
def test_the_battery(plugged, on_battery):
    assert runs_on_battery(lambda: SimpleNamespace(power_plugged=plugged)) is on_battery


def test_no_battery_is_unknown():
    assert runs_on_battery(lambda: None) is None


def test_a_battery_that_cannot_be_read_is_unknown():
    def broken():
        raise FileNotFoundError("/sys/class/power_supply/BAT0/energy_now")

    assert runs_on_battery(broken) is None


WSL2 = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1) #1 SMP"
WSL1 = "Linux version 4.4.0-22621-Microsoft (Microsoft@Microsoft.com) #1-Microsoft"
WSL2_EARLY = "Linux version 4.19.104-microsoft-standard (oe-user@oe-host) #1 SMP"
DEBIAN = "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)"


@pytest.mark.parametrize(
    "kernel, version", [(WSL2, 2), (WSL1, 1), (WSL2_EARLY, 2), (DEBIAN, None), ("", None)]
)
def test_the_kernel_tells_the_version(kernel, version):
    assert wsl_version(kernel) == version


@pytest.mark.parametrize(
    "said, mode",
    [("mirrored\n", "mirrored"), ("NAT\n", "nat"), (None, "unknown"), ("usage: ...", "unknown")],
)
async def test_the_networking_mode_is_asked(said, mode):
    async def ask(*command, timeout_s=0):
        assert command == ("wslinfo", "--networking-mode")
        return said

    assert await read_wsl(WSL2, ask) == Wsl(2, mode)


async def test_elsewhere_nothing_is_asked():
    async def ask(*command, timeout_s=0):
        raise AssertionError(command)

    assert await read_wsl(DEBIAN, ask) is None
