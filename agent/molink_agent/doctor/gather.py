"""Gathers all facts about a PC at once; each question has its time limit, and none can end the
others."""

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import sys
import sysconfig
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from molink.errors import UserError
from molink.version import version
from molink_agent.data_files import WEIGHTS_DIR, Known
from molink_agent.doctor.facts import ClockFacts, DoctorFacts, PortTrial, TorchAnswer
from molink_agent.limits.limits import OwnerLimits
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.local_socket import agent_runs, ask_agent
from molink_agent.network.nat import NatAnswer, ask_stun
from molink_agent.probe.clock import ClockReading
from molink_agent.probe.commands import Ask, answer_of
from molink_agent.probe.gpus import VISIBLE_VARIABLE, GpuProbe, GpuReport
from molink_agent.probe.input_idle import ask_input_idle, input_sources
from molink_agent.probe.machine import bytes_under, read_machine, read_wsl
from molink_agent.probe.windows import AroundWsl, ask_windows

TORCH_WITHIN_S = 60.0
"""Importing torch for the first time reads 3 GB: half a minute from a hard disk."""

CONNECT_WITHIN_S = 5.0
"""Home links answer in 0.2 s; after a lost packet the system tries again at 1 and 3 s. A busy
coordinator answers in one, and a doctor should not keep people waiting."""

ECHO_PATH, ECHO_BYTES = "/agents/echo", 4096
"""Path at which the coordinator sends back what it got; bytes of three packets of a home line."""

TORCH_QUESTION = """
import json
try:
    import torch
except Exception as error:
    print(json.dumps({"problem": f"torch cannot be imported ({error})"}))
else:
    answer = {"version": torch.__version__, "cuda": torch.version.cuda or "", "gpus": []}
    answer["architectures"] = torch.cuda.get_arch_list()
    if torch.version.cuda and not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except Exception as error:
            answer["problem"] = str(error)
    for index in range(torch.cuda.device_count()):
        try:
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
            answer["gpus"].append(torch.cuda.get_device_name(index))
        except Exception as error:
            answer["problem"] = f"cuda:{index}: {error}"
    if answer["gpus"]:
        try:
            torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
        except Exception as error:
            answer["pinning_problem"] = str(error)
        import shutil, sysconfig
        from pathlib import Path
        try:
            import triton
        except Exception as error:
            answer["kernel_problem"] = f"Triton cannot be imported ({error})"
        else:
            if not any(map(shutil.which, ("gcc", "clang"))):
                answer["kernel_problem"] = "there is no C compiler"
            elif not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
                answer["kernel_problem"] = "Python's C headers are not there"
        try:
            sums, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                sums.add_(1)
            graph.replay()
            if sums.item() != 1:
                answer["graph_problem"] = "a recorded sum comes out wrong"
        except Exception as error:
            answer["graph_problem"] = f"nothing can be recorded ({error})"
    print(json.dumps(answer))
"""
"""Program for torch: only computing something shows whether this build has code for the card."""

PROBLEM_CHARACTERS_MAX = 200
"""torch explains itself in paragraphs; the first line is enough."""


async def gather(data_dir: Path, ask: Ask = answer_of) -> DoctorFacts:
    """All facts about this PC and the agent whose data are in `data_dir`."""
    known = Known.load(data_dir)
    limits, limits_problem = _read_limits(data_dir)
    wsl = await read_wsl(ask=ask)
    async with asyncio.TaskGroup() as group:
        gpus = group.create_task(asyncio.to_thread(_read_gpus, wsl is not None))
        torch = group.create_task(ask_torch(ask))
        clock = group.create_task(clock_facts(known.coordinator_url, ask))
        broker = group.create_task(why_unreachable(known.broker_host, known.broker_port))
        packets = group.create_task(asyncio.to_thread(large_packets_pass, known.coordinator_url))
        nat = group.create_task(_ask_nat(known))
        sources = input_sources(os.environ, wsl=wsl is not None)
        idle = group.create_task(ask_input_idle(sources, ask))
        windows = group.create_task(_around(ask, is_wsl=wsl is not None))
    return DoctorFacts(
        machine=read_machine(data_dir),
        gpus=gpus.result(),
        torch=torch.result(),
        port=try_port(known.data_port, agent_runs=await agent_runs(data_dir)),
        version=version(),
        limits=limits,
        limits_problem=limits_problem,
        known=known,
        wsl=wsl,
        windows=windows.result(),
        compiles=_compiles(),
        clock=clock.result(),
        broker_problem=broker.result(),
        large_packets_pass=packets.result(),
        nat=nat.result(),
        input_idle=idle.result(),
        weights_bytes=bytes_under(data_dir / WEIGHTS_DIR),
        swaps=await _swaps(data_dir),
    )


async def _around(ask: Ask, *, is_wsl: bool) -> AroundWsl | None:
    return await ask_windows(ask) if is_wsl else None


def _compiles() -> bool:
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return any(map(shutil.which, ("gcc", "clang"))) and header.is_file()


async def _swaps(data_dir: Path) -> tuple[str, ...]:
    """Parts that stages compute the library's way, as the agent tells; none where none runs."""
    try:
        status = await ask_agent(data_dir, {"command": "status"})
    except UserError:
        return ()
    told = (device.get("swap_fallback") for device in status.get("devices", ()))
    return tuple(sentence for sentence in told if sentence)


async def ask_cards(data_dir: Path, ask: Ask = answer_of) -> DoctorFacts | None:
    """Facts that tell whether torch computes on the cards; None where none would be lent."""
    limits, _ = _read_limits(data_dir)
    wsl = await read_wsl(ask=ask)
    gpus = await asyncio.to_thread(_read_gpus, wsl is not None)
    if limits.lends_cpu_only or not gpus.gpus:
        return None
    return DoctorFacts(
        machine=read_machine(data_dir),
        gpus=gpus,
        torch=await ask_torch(ask),
        port=PortTrial(0),
        limits=limits,
        wsl=wsl,
    )


async def ask_torch(ask: Ask = answer_of) -> TorchAnswer:
    """Ask torch in a process of its own: the agent never loads it."""
    output = await ask(sys.executable, "-c", TORCH_QUESTION, timeout_s=TORCH_WITHIN_S)
    try:
        answer = json.loads((output or "").strip().splitlines()[-1])
        return TorchAnswer(
            str(answer.get("version", "")),
            str(answer.get("cuda", "")),
            tuple(str(name) for name in answer.get("gpus", ())),
            _first_line(answer.get("problem", "")),
            tuple(str(name) for name in answer.get("architectures", ())),
            _first_line(answer.get("kernel_problem", "")),
            _first_line(answer.get("pinning_problem", "")),
            _first_line(answer.get("graph_problem", "")),
        )
    except (ValueError, IndexError, AttributeError):
        return TorchAnswer(
            problem=f"torch did not answer within {TORCH_WITHIN_S:.0f} s, or crashed"
        )


def _first_line(problem: object) -> str:
    return "".join(str(problem).strip().splitlines()[:1])[:PROBLEM_CHARACTERS_MAX]


async def why_unreachable(host: str, port: int) -> str:
    """Why no TCP connection can be made; empty when it can, or when no host is known."""
    if not host:
        return ""
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {CONNECT_WITHIN_S:.0f} s"
    except OSError as error:
        number = error.errno or 0
        return os.strerror(number) if number > 0 else error.strerror or str(error)
    except UnicodeError:
        return "that is no host name"
    writer.close()
    return ""


def try_port(port: int, *, host: str = "", agent_runs: bool) -> PortTrial:
    """Listen at a port of this address of the PC for a moment; empty: of all."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
            trial.listen(1)
        except (OSError, UnicodeError) as error:
            return PortTrial(port, getattr(error, "strerror", "") or str(error), agent_runs)
    return PortTrial(port, agent_runs=agent_runs)


async def clock_facts(coordinator_url: str, ask: Ask = answer_of) -> ClockFacts:
    """How the clock compares with the coordinator's, where one is known, and what the system
    reports of it."""
    output = await ask("timedatectl", "show", "--property=NTPSynchronized", "--value")
    synchronized = {"yes": True, "no": False}.get((output or "").strip())
    if not coordinator_url:
        return ClockFacts(synchronized=synchronized)
    return ClockFacts(await asyncio.to_thread(_clock_offset_s, coordinator_url), synchronized)


def read_date(sent_unix_s: float, round_trip_s: float, header: str | None) -> float | None:
    """The clock's offset by a Date header (whole seconds); None when it is none."""
    try:
        date = parsedate_to_datetime(header or "")
    except ValueError:
        return None
    return ClockReading(sent_unix_s, round_trip_s, date.timestamp()).offset_s


def _clock_offset_s(coordinator_url: str) -> float | None:
    sent_s, started_s = time.time(), time.monotonic()
    answer = _asked(coordinator_url, "HEAD", "/")
    date = answer.getheader("Date") if answer is not None else None
    return read_date(sent_s, time.monotonic() - started_s, date)


def large_packets_pass(coordinator_url: str) -> bool | None:
    """Whether the coordinator sends back what fills several packets; None where it does not answer
    small ones either, or has no such route yet."""
    if not coordinator_url or _asked(coordinator_url, "HEAD", "/") is None:
        return None
    answer = _asked(coordinator_url, "POST", ECHO_PATH, bytes(ECHO_BYTES))
    return answer is not None if answer is None or answer.status == HTTPStatus.OK else None


def _asked(
    coordinator_url: str, method: str, path: str, body: bytes | None = None
) -> http.client.HTTPResponse | None:
    """The coordinator's answer, read; None where none comes in time."""
    try:
        url = urlsplit(coordinator_url)
        # Whoever answers: nothing is told there.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(
            url.hostname or "", url.port, timeout=CONNECT_WITHIN_S, context=context
        )
    except ValueError:
        return None
    with contextlib.closing(connection):
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return None
    return answer


def _read_limits(data_dir: Path) -> tuple[OwnerLimits, str]:
    file = LimitsFile(data_dir)
    try:
        return file.read(), ""
    except UserError as error:
        return OwnerLimits(), str(error)


def _read_gpus(wsl: bool) -> GpuReport:
    probe = GpuProbe(wsl=wsl, visible=os.environ.get(VISIBLE_VARIABLE))
    with contextlib.closing(probe):
        return probe.read()


async def _ask_nat(known: Known) -> NatAnswer | None:
    host = urlsplit(known.coordinator_url).hostname or known.broker_host
    if not host or not known.stun_port:
        return None
    return await ask_stun(host, known.stun_port)
