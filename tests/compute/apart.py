"""Stages of tests whose weights lie in real processes of their own."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil

from molink.compute.client import ComputeClient
from molink.engine.local_engine import LocalEngine
from tests.engine.test_local_engine import load


def apart_engine(directory, layers: tuple[int, int], dtype: str = "float32", **work) -> LocalEngine:
    """An engine with the KV of these layers, whose weights another process loads."""
    engine = LocalEngine(computing_of=ComputeClient)
    command = load(directory, layers, dtype)
    wanted = replace(command, work=replace(command.work, **work), attention_device="host")
    engine.prepare(wanted, lambda fraction: None)
    return engine


@contextmanager
def ended(*engines: LocalEngine) -> Iterator[None]:
    """End the processes of these engines behind the block."""
    try:
        yield
    finally:
        for engine in engines:
            end(engine)


def end(engine: LocalEngine) -> None:
    """Close the links, at which the processes end."""
    client(engine)._server.close()
    client(engine)._link.close()


def client(engine: LocalEngine) -> ComputeClient:
    """The engine's link to its weights."""
    return engine.executor.computing


def weights_process(engine: LocalEngine) -> psutil.Process:
    """The process that has loaded the weights, by the other end of its socket's inode."""
    pid = client(engine)._process.pid
    return next(one for one in psutil.Process().children() if one.pid == pid)


def kill_computing(engine: LocalEngine) -> int:
    """Kill the process that computes, with no warning; which it was."""
    victim = weights_process(engine).children()[-1]
    os.kill(victim.pid, signal.SIGKILL)
    return victim.pid
