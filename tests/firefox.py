"""A Firefox as distributions ship it, for Playwright: run in its place with the arguments it gives.

Playwright speaks WebDriver BiDi to an unchanged Firefox, and asks of each new context what the
long-term release does not know yet (`emulation.setMediaFeaturesOverride`). So it is connected
through here: every message passes as it is, but for the refusal of such a command, which becomes a
success. What was to be emulated stays as it is, such as a colour scheme.
"""

import asyncio
import json
import os
import re
import shlex
import sys
from pathlib import Path

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, web

LISTENS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
MESSAGE_BYTES_MAX = 2**28
"""A picture of a page comes in one message."""

FIREFOX = "MOLINK_TEST_FIREFOX"
"""Environment variable: the program to run."""


def launcher(firefox: str, folder: Path) -> Path:
    """A program in `folder` that runs `firefox` in this way, for Playwright to start."""
    program = folder / "firefox"
    command = f"{FIREFOX}={shlex.quote(firefox)} exec {shlex.quote(sys.executable)}"
    program.write_text(f'#!/bin/sh\n{command} {shlex.quote(__file__)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


async def main() -> int:
    """Run Firefox until it ends. Returns its exit status."""
    command = (os.environ[FIREFOX], *sys.argv[1:])
    firefox = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert firefox.stderr is not None
    async for raw in firefox.stderr:
        line = raw.decode(errors="replace")
        if found := LISTENS.search(line):
            url = await _relayed(found[1])
            line = line.replace(found[1], url)
        sys.stderr.write(line)
        sys.stderr.flush()
    return await firefox.wait()


async def _relayed(url: str) -> str:
    """Address of a relay to `url`."""

    async def relay(request: web.Request) -> web.WebSocketResponse:
        ours = web.WebSocketResponse(max_msg_size=MESSAGE_BYTES_MAX)
        await ours.prepare(request)
        place, how = url + request.path, {"max_msg_size": MESSAGE_BYTES_MAX}
        async with ClientSession() as session, session.ws_connect(place, **how) as theirs:
            back = asyncio.create_task(_pass(theirs, ours))
            await _pass(ours, theirs)
            back.cancel()
        return ours

    app = web.Application()
    app.router.add_get("/{path:.*}", relay)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"ws://127.0.0.1:{runner.addresses[0][1]}"


Socket = ClientWebSocketResponse | web.WebSocketResponse


async def _pass(source: Socket, sink: Socket) -> None:
    async for message in source:
        if message.type is WSMsgType.TEXT:
            await sink.send_str(excused(message.data))
    await sink.close()


def excused(message: str) -> str:
    """The message; a success where it says that a command of emulation is unknown."""
    if '"unknown command"' not in message or "emulation." not in message:
        return message
    told = json.loads(message)
    if told.get("error") != "unknown command" or not told["message"].startswith("emulation."):
        return message
    return json.dumps({"type": "success", "id": told["id"], "result": {}})


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
