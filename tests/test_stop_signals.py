"""Which signals end a command in order."""

import asyncio
import os
import signal

import pytest

from molink.tasks import until_stopped


@pytest.fixture
def hangup():
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_it_is_cancelled_and_what_it_started_is_stopped(stop, hangup):
    stopped = []

    async def work():
        try:
            os.kill(os.getpid(), stop)
            await asyncio.Event().wait()
        finally:
            stopped.append(stop)

    async with asyncio.timeout(10):
        await until_stopped(work())
    assert stopped == [stop]


async def test_under_nohup_a_closed_terminal_ends_nothing(hangup):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def work():
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)

    await until_stopped(work())
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
