"""`molink dashboard`: the cluster on one screen, from any machine that reaches its API."""

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.cli.extras import check_extra
from molink.cli.options import key_option, url_option
from molink.errors import UserError
from molink.quick_imports import quick_imports
from molink.terminal.tables import data_dir_option

if TYPE_CHECKING:
    from molink.dashboard.actions import Actions
    from molink.dashboard.sources import LiveSource, Source

SILENCE_S_MAX = 5.0
"""A coordinator answers in milliseconds; one that does not is said to be away."""

_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@url_option
@key_option
@click.option("--read-only", is_flag=True, help="Offer nothing that changes the cluster.")
@click.option(
    "--record", type=_file, metavar="FILE", help="Write all that is seen; compressed for FILE.gz."
)
@click.option(
    "--replay", type=_file, metavar="FILE", help="Instead: step through what --record wrote."
)
@data_dir_option
def dashboard(
    url: str,
    key: str | None,
    read_only: bool,
    record: Path | None,
    replay: Path | None,
    data_dir: str | None,
) -> None:
    """Watch a cluster: its ring, nodes, requests, links and events; ? shows the keys.

    It is a client of the API and needs a key to watch, for orders an admin's, but for a server of
    your own on this machine. Where there is no terminal it shows lines instead of a screen.
    """
    if replay is not None and record is not None:
        raise UserError("--replay shows a recording and makes none: leave out --record")
    if _has_terminal():
        check_extra("dashboard")
    if replay is not None:
        asyncio.run(_replay(replay))
        return
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UserError("the key has characters that no key has: copy it again, whole")
    asyncio.run(_live((url, key, data_dir), read_only=read_only, record=record))


async def _live(
    server: tuple[str, str | None, str | None], *, read_only: bool, record: Path | None
) -> None:
    """Watch the server of this URL, with the key or as the owner of the data directory, until
    somebody ends it. Raises UserError when there is none that lets us in."""
    with quick_imports():
        from molink.cli.own_server import client_of
        from molink.client.api_client import server_url
        from molink.dashboard.actions import Actions
        from molink.dashboard.poller import Poller
        from molink.dashboard.recording import DashboardRecorder
        from molink.dashboard.sources import LiveSource

    async with AsyncExitStack() as stack:
        client = client_of(*server, silence_s_max=SILENCE_S_MAX)
        poller = Poller(await stack.enter_async_context(client))
        first = await poller.first()
        where = server_url(server[0])
        recorder = (
            stack.enter_context(DashboardRecorder(record, where)) if record is not None else None
        )
        source = LiveSource(poller, where, first, recorder)
        if _has_terminal():
            await _show(source, None if read_only else Actions(poller.client))
        else:
            await _print(source)


async def _replay(path: Path) -> None:
    from molink.dashboard.plain import PlainNews
    from molink.dashboard.recording import DashboardRecording, DashboardReplay
    from molink.dashboard.sources import ReplaySource

    replay = DashboardReplay(DashboardRecording.open(path))
    if _has_terminal():
        await _show(ReplaySource(replay), None)
        return
    news = PlainNews()
    while True:
        for line in news.lines(replay.history):
            click.echo(line)
        if replay.is_at_end:
            return
        replay.step(1)


async def _show(source: "Source", actions: "Actions | None") -> None:
    with quick_imports():
        from molink.dashboard.pages.lines import ASCII, UNICODE
        from molink.dashboard.screen.app import DashboardApp

    glyphs = UNICODE if shows_utf8(os.environ) else ASCII
    await DashboardApp(source, glyphs, actions).run_async()


async def _print(source: "LiveSource") -> None:
    """Lines, until stopped or nobody reads them any more."""
    from molink.dashboard.plain import PlainNews
    from molink.tasks import until_stopped

    news = PlainNews()

    def print_news() -> None:
        for line in news.lines(source.history):
            click.echo(line)

    print_news()
    with suppress(BrokenPipeError):
        await until_stopped(source.run(print_news))


def _has_terminal() -> bool:
    is_terminal = all(one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr))
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb"


def shows_utf8(environment: Mapping[str, str]) -> bool:
    """Whether the terminal shows UTF-8, by its locale. Python makes C.UTF-8 of a C locale for
    itself; the terminal knows nothing of that."""
    language = environment.get("LANG", "")
    kind = environment.get("LC_CTYPE", "")
    if kind == "C.UTF-8" and language in ("C", "POSIX"):
        kind = ""
    name = environment.get("LC_ALL") or kind or language
    return not name or "UTF8" in name.upper().replace("-", "")
