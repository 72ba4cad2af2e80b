"""What `molink up` says, to people and to scripts, and how it ends."""

import asyncio
import io
from dataclasses import dataclass, field, replace

import pytest
from rich.console import Console

from molink.cli.up import _announce, _announce_beside, _show
from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from molink.coordinator.reports import cluster_news
from molink.coordinator.reports.cluster_news import ClusterNews
from molink.errors import UserError
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.events import EventLedger
from molink.tasks import background_tasks
from molink.terminal.status_line import StatusLine

NOBODY_YET = from_plain(ClusterReport, {"unready_reason": "No PC has joined yet."})


@dataclass
class Cluster:
    """As much of one as its operator sees: registry, service and news at once."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    text: str = "molink1-abc"
    report: ClusterReport | None = NOBODY_YET

    def make_invite(self, expires_s, uses, name, now, *, at_start):
        assert at_start
        if not self.text:
            raise UserError("There are too many invites.")
        return self

    @property
    def service(self):
        return self

    @property
    def news(self):
        return ClusterNews(lambda: self.report, EventLedger())

    async def until_ready(self):
        await self.ready.wait()


@pytest.fixture
def settings(tmp_path):
    return settings_of(UpSettings, model="demo", data_dir=tmp_path, public_host="192.0.2.1")


def onlooker():
    written = io.StringIO()
    return written, StatusLine(Console(file=written, width=200))


async def test_the_invite_is_on_standard_output_and_what_to_do_with_it_is_not(settings, capsys):
    written, shown = onlooker()
    _announce(Cluster(), settings, 8000, shown)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["listening http://192.0.2.1:8000", "molink agent join molink1-abc"]
    assert "lets 5 PCs in" in " ".join(written.getvalue().replace("\n", " ").split())


async def test_one_beside_another_says_how_it_comes_by_pcs_and_prints_no_invite(settings, capsys):
    written, shown = onlooker()
    _announce_beside(replace(settings, replaces="old"), 8000, shown)
    assert capsys.readouterr().out == "listening http://192.0.2.1:8000\n"
    assert "molink node move NAME --data-dir old" in " ".join(written.getvalue().split())


async def test_too_many_invites_keep_nobody_from_serving(settings, capsys):
    written, shown = onlooker()
    _announce(Cluster(text=""), settings, 8000, shown)
    assert capsys.readouterr().out == "listening http://192.0.2.1:8000\n"
    assert written.getvalue() == "No new invite: There are too many invites.\n"


async def test_ready_is_said_for_scripts_when_it_is_so(settings, capsys):
    cluster, (_, shown) = Cluster(), onlooker()
    async with background_tasks() as tasks:
        tasks.create_task(_show(cluster, "http://192.0.2.1:8000", shown))
        await asyncio.sleep(0.01)
        assert "ready" not in capsys.readouterr().out
        cluster.ready.set()
        await asyncio.sleep(0.01)
    assert capsys.readouterr().out == "ready http://192.0.2.1:8000\n"


async def test_what_cannot_be_told_does_not_end_the_cluster(monkeypatch, caplog):
    monkeypatch.setattr(cluster_news, "PERIOD_S", 0.0)
    async with background_tasks() as tasks, asyncio.timeout(5):
        tasks.create_task(Cluster(report=None).news.run())
        while len(caplog.records) < 2:  # noqa: ASYNC110 - it evaluates by itself
            await asyncio.sleep(0)
    assert "Telling what the cluster does failed (2 so far): AttributeError" in caplog.text
