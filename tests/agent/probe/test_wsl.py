"""Which Windows is around this Linux, if any."""

import pytest

from molink_agent.probe.wsl import Wsl, read_wsl, wsl_version

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
