"""Entry point of the process with a stage's weights: `python -m molink.compute.weights_process FD`.

It loads them, proves and rearranges them as any stage does, and then waits. What computes are forks
of it, which share its memory: one that is lost is replaced in some milliseconds, and no weight is
read again. A fork has only the thread that forks, so nothing here may have started another one: it
loads with a single thread, and its forks have as many as the stage.

A stage holds the other end of its socket; when that closes this process ends, and its forks with
it.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Before torch is imported: a spinning OpenMP thread costs 8 ms per region on a shared core.

import argparse
import gc
import json
import logging
import signal
import socket
from contextlib import suppress
from dataclasses import asdict, replace

from molink.quick_imports import quick_imports

with quick_imports():
    import torch

    from molink.compute.compute_loop import ComputeLoop
    from molink.engine.device.elements import dtype_name
    from molink.engine.local_engine import LocalEngine
    from molink.engine.step.extended_stage import parts_of
    from molink.engine.step.stage import StageExecutor
    from molink.lender.fork_server import ForkServer

from molink.engine_protocol.computing import WeightsLoaded
from molink.errors import MolinkError, NoRoomError, UnsupportedModelError, UserError
from molink.stage_protocol.messages import LoadStage, decode_line

KV_TOKENS = 256
"""Tokens of KV while it loads, for what tries the model: its own is never used after that."""

LINE_BYTES_MAX = 64 * 1024

NICENESS = 5
"""Computing gives way to the links of this PC, and to the person who works at it, as a stage
does."""

REASON_CHARACTERS = 1000


def loaded(load: LoadStage, told: socket.socket) -> StageExecutor:
    """The stage whose weights are loaded. Raises UserError or StageError with one sentence."""
    work = replace(load.work, kv_tokens=KV_TOKENS, kv_host_tokens=0, lan_lease=None, threads=1)
    engine = LocalEngine()

    def progress(fraction: float) -> None:
        _send(told, fraction=fraction)

    engine.prepare(replace(load, work=work, attention_device=""), progress)
    (stage,) = parts_of(engine.executor)
    check(stage)
    return stage


def check(stage: StageExecutor) -> None:
    """Raises UnsupportedModelError for a model whose layers keep something beside keys and
    values, or compute attention with weights of their own."""
    if stage.kv_memory.latents:
        raise UnsupportedModelError("layers with latent attention attend with their weights")
    if stage.states.layers:
        raise UnsupportedModelError("layers with a state keep it beside their weights")


def facts(stage: StageExecutor) -> WeightsLoaded:
    """What the stage is told of its weights."""
    return WeightsLoaded(
        dtype_name(stage.dtype),
        stage.weights_bytes,
        stage.takes_token_ids,
        stage.fallbacks.swaps,
    )


def serve(control: socket.socket) -> None:
    """Load what is asked for, and fork until the stage closes the link."""
    load = decode_line(control.recv(LINE_BYTES_MAX))
    assert isinstance(load, LoadStage), f"expected LoadStage, got {load}"
    try:
        stage = loaded(load, control)
    except MolinkError as error:
        is_user, is_full = isinstance(error, UserError), isinstance(error, NoRoomError)
        reason = str(error)[:REASON_CHARACTERS]
        _send(control, refused=reason, user_fault=is_user, device_full=is_full)
        return
    _send(control, **asdict(facts(stage)))
    gc.collect()
    gc.freeze()  # A collection in a fork would write to, and so copy, all that it shares.

    def compute(link: int, threads: int) -> None:
        os.nice(NICENESS)
        torch.set_num_threads(threads)
        with socket.socket(fileno=link) as asking:
            ComputeLoop(asking, stage).run()

    ForkServer(control, compute).run()


def _send(control: socket.socket, **fields: object) -> None:
    control.sendall(json.dumps(fields).encode())


def main() -> None:
    """Serve the stage at the other end of an inherited socket."""
    parser = argparse.ArgumentParser(prog="molink.compute.weights_process")
    parser.add_argument("control", type=int, help="Descriptor of the socket.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    with socket.socket(fileno=arguments.control) as control, suppress(ConnectionError):
        serve(control)


if __name__ == "__main__":
    main()
