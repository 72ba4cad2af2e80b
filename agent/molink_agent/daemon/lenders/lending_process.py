"""Process that lends: the agent's child, as stages are. It speaks JSON a line over its standard
streams, and ends with its input (`molink.lender.lan.lan_server`)."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from molink.json_object import JsonObject

SERVER = (sys.executable, "-m", "molink.lender.lan.lan_server")

START_WITHIN_S = 60.0
"""Seconds until the process tells its port: it imports torch, on a slow disk for long."""

END_WITHIN_S = 3.0
"""Seconds for it to end once its input is closed; then it is killed."""

LINE_BYTES_MAX = 4096

ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Cards have their driver's numbers, and are asked for without beginning with one: a fork may do
that only where nobody has before."""


@dataclass(slots=True)
class LendingProcess:
    """Process that lends memory of one device of this PC to stages."""

    process: Process
    port: int
    incarnation: int
    """Number that it has drawn as it started."""
    held: dict[int, int] = field(default_factory=dict)
    """Bytes that lie here, by lease."""

    @classmethod
    async def start(cls, command: Sequence[str], bind: str, threads: int) -> "LendingProcess":
        """One that listens. Raises OSError, ValueError or TimeoutError when it does not."""
        options = ("--bind", bind, "--port", "0", "--threads", str(threads))
        process = await asyncio.create_subprocess_exec(
            *command,
            *options,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=LINE_BYTES_MAX,
            env=os.environ | ENVIRONMENT,
        )
        assert process.stdout is not None, "its output is a pipe"
        try:
            async with asyncio.timeout(START_WITHIN_S):
                message = json.loads(await process.stdout.readline())
            return cls(process, int(message["port"]), int(message["incarnation"]))
        except BaseException as error:
            process.kill()
            await process.wait()
            if isinstance(error, KeyError | TypeError):
                raise ValueError("it does not say where it listens") from None
            raise

    @property
    def forks(self) -> frozenset[int]:
        """Ids of those of its processes that attend, one for each lease that is in use."""
        with suppress(psutil.Error):
            return frozenset(one.pid for one in psutil.Process(self.process.pid).children())
        return frozenset()

    async def follow(self) -> None:
        """Take note of what it tells until it ends, or says what is no line."""
        assert self.process.stdout is not None, "its output is a pipe"
        with suppress(ValueError):  # A line that is too long: it is none of ours.
            while line := await self.process.stdout.readline():
                with suppress(ValueError, KeyError, TypeError):
                    message = json.loads(line)
                    self.held[int(message["lease"])] = max(0, int(message["bytes"]))

    def tell(self, order: JsonObject) -> None:
        """Order it to allow a lease or to revoke one."""
        assert self.process.stdin is not None, "its input is a pipe"
        with suppress(OSError, RuntimeError):  # It ends, which `follow` sees.
            self.process.stdin.write(json.dumps(order).encode() + b"\n")

    async def end(self) -> None:
        """Have it end, with all leases."""
        assert self.process.stdin is not None, "its input is a pipe"
        self.process.stdin.close()
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
