"""Looking at a real PC: whatever it is like, the doctor comes back with facts."""

import asyncio
import json
import socket
from datetime import UTC, datetime

import pytest

from molink.control.certificate import own_certificate
from molink.control.messages.base import ModelSize
from molink_agent.data_files import Known
from molink_agent.doctor import gather as gather_module
from molink_agent.doctor.gather import (
    ask_torch,
    clock_facts,
    gather,
    read_date,
    try_port,
    why_unreachable,
)
from molink_agent.limits.limits import OwnerLimits

LOOPBACK = "127.0.0.1"
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def silent(*command, timeout_s=0):
    return None


def saying(text):
    async def ask(*command, timeout_s=0):
        return text

    return ask


async def test_a_pc_where_no_program_answers(tmp_path):
    facts = await gather(tmp_path, ask=silent)
    assert not facts.joined
    assert facts.torch.version == ""
    assert facts.torch.problem
    assert (facts.nat, facts.broker_problem, facts.clock.offset_s) == (None, "", None)


async def test_broken_limits_are_a_fact(tmp_path):
    (tmp_path / "limits.toml").write_text("threads = lots")
    facts = await gather(tmp_path, ask=silent)
    assert facts.limits == OwnerLimits()
    assert "not valid TOML" in facts.limits_problem


async def test_weights_are_counted(tmp_path):
    (tmp_path / "weights" / "model").mkdir(parents=True)
    (tmp_path / "weights" / "model" / "shard").write_bytes(b"x" * 1000)
    assert (await gather(tmp_path, ask=silent)).weights_bytes == 1000


async def test_torch_s_answer_is_read():
    said = {"version": "2.9.0", "cuda": "12.8", "gpus": ["RTX"], "problem": "cuda:1: bad\nmore"}
    answer = await ask_torch(saying(f"a warning\n{json.dumps(said)}\n"))
    assert (answer.version, answer.gpus, answer.problem) == ("2.9.0", ("RTX",), "cuda:1: bad")


async def test_why_no_kernels_can_be_made_is_read():
    said = {"version": "2.9.0", "gpus": ["RTX"], "kernel_problem": "there is no C compiler\nmore"}
    said |= {"pinning_problem": "CUDA error\nadvice", "graph_problem": "wrong\nmore"}
    answer = await ask_torch(saying(json.dumps(said)))
    assert (answer.problem, answer.kernel_problem) == ("", "there is no C compiler")
    assert (answer.pinning_problem, answer.graph_problem) == ("CUDA error", "wrong")


@pytest.mark.parametrize("said", ["", "Killed", "[]", "{", "3"])
async def test_torch_s_nonsense_is_no_answer(said):
    answer = await ask_torch(saying(said))
    assert answer.version == ""
    assert answer.problem


async def test_a_broker_that_listens_is_reached():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await why_unreachable(LOOPBACK, port) == ""
    assert "refused" in await why_unreachable(LOOPBACK, port)


async def test_a_broker_whose_name_is_unknown():
    assert await why_unreachable("no.such.host.invalid", 1883) != ""
    assert await why_unreachable("a" * 70 + ".example", 1883) == "that is no host name"
    assert await why_unreachable("", 0) == ""


def test_a_port_that_is_taken_is_told():
    assert try_port(0, agent_runs=False).problem == ""
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen()
        taken = try_port(holder.getsockname()[1], agent_runs=True)
    assert "in use" in taken.problem
    assert taken.agent_runs
    assert try_port(0, host="a" * 70 + ".example", agent_runs=False).problem


async def test_a_running_agent_is_noticed(tmp_path):
    server = await asyncio.start_unix_server(
        lambda reader, writer: writer.close(), tmp_path / "agent.sock"
    )
    async with server:
        assert (await gather(tmp_path, ask=silent)).port.agent_runs
    (tmp_path / "agent.sock").unlink(missing_ok=True)
    assert not (await gather(tmp_path, ask=silent)).port.agent_runs


def test_the_date_of_an_answer_tells_the_offset():
    header = "Mon, 02 Mar 2026 12:00:00 GMT"
    assert read_date(NOW.timestamp() - 3600, 2.0, header) == 3599
    assert read_date(0, 0, None) is None
    assert read_date(0, 0, "noon") is None


async def test_the_coordinator_s_clock_is_asked(tmp_path):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nDate: Mon, 02 Mar 2026 12:00:00 GMT\r\n\r\n")
        writer.close()

    tls = own_certificate(tmp_path).server_context()
    server = await asyncio.start_server(answer, LOOPBACK, 0, ssl=tls)
    async with server:
        port = server.sockets[0].getsockname()[1]
        facts = await clock_facts(f"https://{LOOPBACK}:{port}", saying("yes\n"))
    assert facts.synchronized
    expected = NOW.timestamp() - datetime.now(UTC).timestamp()
    assert facts.offset_s == pytest.approx(expected, abs=60)


@pytest.mark.parametrize(
    ("answers", "passed"), [("HEAD", False), ("HEAD POST", True), ("", None), ("HEAD 404", None)]
)
async def test_full_packets_are_told_from_small_ones(tmp_path, monkeypatch, answers, passed):
    """A line that carries no full packets is one on which the larger request is never answered."""
    monkeypatch.setattr(gather_module, "CONNECT_WITHIN_S", 0.5)
    connected = []

    async def answer(reader, writer):
        connected.append(writer)  # Kept: one that is forgotten is closed, and that is an answer.
        method = (await reader.readuntil(b"\r\n\r\n")).split()[0].decode()
        if method in answers:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        elif "404" in answers:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    tls = own_certificate(tmp_path).server_context()
    async with await asyncio.start_server(answer, LOOPBACK, 0, ssl=tls) as server:
        url = f"https://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        assert await asyncio.to_thread(gather_module.large_packets_pass, url) is passed
        for writer in connected:
            writer.close()


@pytest.mark.parametrize("url", ["", "http://", "http://[", f"http://{LOOPBACK}:99999", "nonsense"])
async def test_a_coordinator_that_cannot_be_asked(url):
    facts = await clock_facts(url, silent)
    assert (facts.offset_s, facts.synchronized) == (None, None)


def test_what_was_known_is_read_back(tmp_path):
    known = Known(
        broker_host="10.0.0.1",
        broker_port=1883,
        model=ModelSize(name="m", layers=2, layer_bytes=5),
    )
    known.save(tmp_path / "new")
    assert Known.load(tmp_path / "new") == known


@pytest.mark.parametrize("text", ["", "[]", '{"broker_port": -1}'])
def test_what_is_no_longer_understood_is_forgotten(tmp_path, text):
    (tmp_path / "known.json").write_text(text)
    assert Known.load(tmp_path) == Known()
    assert Known.load(tmp_path / "nowhere") == Known()
