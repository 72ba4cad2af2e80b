"""Local socket between `molink agent status` with its siblings and the running agent: JSON lines.

It is a Unix socket in the data directory that only the PC's owner may open: opening it is the
permission to do what the owner may do.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from molink.control.private_file import private_socket
from molink.errors import MolinkError, UserError
from molink.json_object import JsonObject

SOCKET_NAME = "agent.sock"

LINE_BYTES_MAX = 2**16
"""A question is a word and a value."""

ANSWER_TIMEOUT_S = 60.0
"""Pausing waits for what runs; it answers before that."""

Answer = Callable[[JsonObject], Awaitable[Mapping[str, object]]]


@asynccontextmanager
async def answering(path: Path, answer: Answer) -> AsyncIterator[None]:
    """Answer questions at a socket while the block runs. A MolinkError becomes its sentence."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ValueError, asyncio.LimitOverrunError):
            question = read_question(await reader.readline())
            writer.write(json.dumps(await _answered(answer, question)).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, sock=private_socket(path), limit=LINE_BYTES_MAX)
    try:
        yield
    finally:
        server.close()
        _remove(path)


def read_question(line: bytes) -> Any:
    """The JSON of one line. Raises ValueError when it is none."""
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("a question is nested too deeply") from None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _answered(answer: Answer, question: Any) -> Mapping[str, object]:
    if not isinstance(question, dict):
        return {"error": "a question is a JSON object"}
    try:
        return await answer(question)
    except MolinkError as error:
        return {"error": str(error)}


async def agent_runs(data_dir: Path) -> bool:
    """Whether somebody listens there; a socket alone may be left from a crash."""
    try:
        _, writer = await asyncio.open_unix_connection(data_dir / SOCKET_NAME)
    except OSError:
        return False
    writer.close()
    return True


async def ask_agent(data_dir: Path, question: JsonObject) -> JsonObject:
    """The running agent's answer. Raises UserError when none runs or when it says no."""
    path = data_dir / SOCKET_NAME
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=2**20)
    except OSError:
        raise UserError(
            f"No agent runs with the data directory {data_dir}: start it with "
            "`molink agent run`, or give --data-dir."
        ) from None
    writer.write(json.dumps(question).encode() + b"\n")
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            line = await reader.readline()
        answer: JsonObject = json.loads(line)
    except (TimeoutError, ValueError, ConnectionError):
        raise UserError("The agent did not answer: see `molink agent logs`.") from None
    finally:
        writer.close()
    if "error" in answer:
        raise UserError(str(answer["error"]))
    return answer
