"""Writes what a running server does, until Ctrl-C: `python -m tools.trace URL --out FILE`.

What the server still knows of before (the last 200 requests, the last events) is in the file, too.
A key to watch is enough (`molink key create --scope watch`). Names of PCs and ids of requests are
in the file; prompts and answers are not.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from molink.cli.options import key_option
from molink.client.api_client import ApiClient
from molink.errors import UserError
from tools.trace.recorder import Recorder, began_unix_s
from tools.trace.trace_file import TraceFile

__all__ = ["main", "record"]

PERIOD_S = 0.5
"""Between two looks: stages report as often."""


@click.command()
@click.argument("url")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write.")
@click.option("--for-s", type=float, help="Stop after so many seconds; else at Ctrl-C.")
@key_option
def main(url: str, out: Path, for_s: float | None, key: str | None) -> None:
    """Write a trace of the server at URL for ui.perfetto.dev."""
    ends_at = None if for_s is None else time.monotonic() + for_s
    try:
        asyncio.run(record(url, key, out, lambda: ends_at is None or time.monotonic() < ends_at))
    except KeyboardInterrupt:
        pass
    except (UserError, OSError) as error:
        raise click.ClickException(str(error)) from None


async def record(url: str, key: str | None, out: Path, goes_on: Callable[[], bool]) -> None:
    """Ask twice a second while `goes_on`, and end the file. Raises UserError when the server does
    not answer, OSError when the disk is full."""
    async with ApiClient(url, key) as client:
        requests, news = await _requests(client), await client.get("/cluster/events")
        began = began_unix_s(requests, news["events"], time.time())
        trace = TraceFile.create(out, began)
        recorder = Recorder(trace)
        with contextlib.closing(trace):
            try:
                while goes_on() and not trace.is_full:
                    recorder.events(news["events"])
                    recorder.cluster(await client.get("/cluster"), time.time())
                    requests = await _requests(client)
                    recorder.requests(requests)
                    trace.flush()
                    await asyncio.sleep(PERIOD_S)
                    news = await client.get(f"/cluster/events?after={news['next']}")
            finally:
                recorder.requests(requests, at_the_end=True)


async def _requests(client: ApiClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get("/cluster/requests"))["requests"]
    return found


if __name__ == "__main__":
    main()
