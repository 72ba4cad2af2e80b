"""The page in a real browser, in front of a service that does what the test tells it."""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from molink.api import create_app, start_api
from molink.api.access import Access
from molink.report.cluster import ClusterReport, RingReport
from molink.report.plain import from_plain
from molink.report.requests import StageLayers
from molink.serving.answer_log import Ending
from molink.serving.answers.live_state import LiveState
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent
from tests.api.conftest import FakeService
from tests.firefox import launcher

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FIREFOX_NAMES = ("firefox-esr", "firefox")

FEW_PROCESSES = {
    "dom.ipc.processCount": 1,
    "dom.ipc.processPrelaunch.enabled": False,
    "fission.autostart": False,
}
"""Of a Firefox: one for all pages starts sooner than one for each."""

REBOUND_HOST = "rebound.example"
REBOUND = f"--host-resolver-rules=MAP {REBOUND_HOST} 127.0.0.1"
"""A name that somebody else has made to point at this machine."""

PATIENCE_MS = 20_000
"""How long a test waits for what should be there within milliseconds."""


def chromium() -> str:
    """The browser to test in; skips the test where there is none."""
    found = [path for name in CHROMIUM_NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    return found[0]


def firefox(folder: Path) -> Path:
    """A program that starts Firefox for Playwright; skips the test where there is none."""
    found = [path for name in FIREFOX_NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip("no Firefox is installed (apt-get install firefox-esr)")
    return launcher(found[0], folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Any, None]:
    """A Chromium without a window, for all tests of a file."""
    async with playing() as driver:
        one = await driver.chromium.launch(executable_path=chromium(), args=[REBOUND])
        yield one
        await one.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def firefox_browser(tmp_path_factory) -> AsyncGenerator[Any, None]:
    """A Firefox without a window, for a file whose `browser` it is to be."""
    path = firefox(tmp_path_factory.mktemp("firefox"))
    async with playing() as driver:
        one = await driver.firefox.launch(
            channel="moz-firefox", executable_path=path, firefox_user_prefs=FEW_PROCESSES
        )
        yield one
        await one.close()


def playing() -> Any:
    """Playwright, with patience."""
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    playwright.expect.set_options(timeout=PATIENCE_MS)
    return playwright.async_playwright()


def stage(node: str, start: int, end: int, busy_share: float = 0.25) -> dict[str, Any]:
    return {"node": node, "layers": [start, end], "busy_share": busy_share}


def ring(number: int, *stages: dict[str, Any]) -> dict[str, Any]:
    """As GET /cluster shows one, as far as the page looks."""
    names = [one["node"] for one in stages]
    ends = zip(names, names[1:] + names[:1], strict=True)
    links = [{"from": a, "to": b, "rate_mbps": 98.25, "rtt_ms": 60.4} for a, b in ends]
    return {"ring": number, "stages": list(stages), "links": links}


def held(ring: dict[str, Any]) -> tuple[StageLayers, ...]:
    return tuple(StageLayers(one["node"], tuple(one["layers"])) for one in ring["stages"])


FIRST_RING = ring(1, stage("attic", 0, 3), stage("cellar", 3, 6, 0.5), stage("garage", 6, 9))
SECOND_RING = ring(2, stage("attic", 0, 5), stage("garage", 5, 9))


@dataclass(frozen=True)
class Move:
    """The ring that computes is lost, and another goes on with the answer."""

    ring: dict[str, Any]
    because: str


Piece = str | Exception | Move | None

STEP_S = 0.25
"""From arrival to the ring, from there to the first token, from each token to the next."""


@dataclass
class ToldService(FakeService):
    """Writes each piece of text that the test puts, until it puts None; an exception is raised."""

    rings: list[dict[str, Any]] = field(default_factory=lambda: [FIRST_RING])
    pieces: asyncio.Queue[Piece] = field(default_factory=asyncio.Queue)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        self.requests.append(request)
        timeline, now_s = request.timeline, request.timeline.arrival.at + STEP_S
        log = request.log
        if log is not None:
            log.begin()
        how = None
        try:
            with self.request_log.following(timeline):
                timeline.submitted(self.rings[0]["ring"], held(self.rings[0]), now_s)
                while (piece := await self.pieces.get()) is not None:
                    now_s += STEP_S
                    match piece:
                        case Exception():
                            raise piece
                        case Move(other, because):
                            timeline.moved(because, now_s)
                            timeline.submitted(other["ring"], held(other), now_s)
                        case str():
                            timeline.tokens_came(1, now_s)
                            event = TokenEvent((ord("a"),), piece)
                            if log is not None:
                                log.took(event)
                            yield event
                timeline.finished("stop", now_s)
                how = "stop"
                yield TokenEvent((), "", finish_reason="stop")
        finally:
            if log is not None:
                log.ended(Ending(time.time(), how))
            self.closed.release()

    def cluster(self) -> ClusterReport:
        """With names and figures as a node tells them, cleaned by nobody."""
        report = from_plain(ClusterReport, {"model": self.card.name, "rings": self.rings})
        rings = [as_told(*one) for one in zip(report.rings, self.rings, strict=True)]
        return replace(report, rings=tuple(rings))

    def put(self, *pieces: Piece) -> None:
        for piece in pieces:
            self.pieces.put_nowait(piece)


def as_told(ring: RingReport, told: dict[str, Any]) -> RingReport:
    stages = [
        replace(stage, node=one["node"], busy_share=one["busy_share"])
        for stage, one in zip(ring.stages, told["stages"], strict=True)
    ]
    return replace(ring, stages=tuple(stages))


@dataclass
class Visit:
    """A reader's tab, open at the page."""

    page: Any
    service: ToldService
    url: str
    runner: Any
    asked: list[str] = field(default_factory=list)
    """URLs of all that the page has loaded."""
    complaints: list[str] = field(default_factory=list)
    """What the browser's console has warned of."""

    async def open(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)
        await self.page.goto(self.url)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    async def ask(self, question: str) -> None:
        await self.page.get_by_label("Message", exact=True).fill(question)
        await self.page.keyboard.press("Enter")

    def cut_lines(self) -> None:
        """Break the connections that are open now."""
        for one in self.runner.server.connections:
            if one.transport is not None:
                one.transport.abort()

    def silence_lines(self) -> None:
        """Let nothing more through the connections that are open now, and close none."""
        for one in self.runner.server.connections:
            if one.transport is not None:
                one.transport.write = lambda data: None
                one.transport.writelines = lambda data: None

    @property
    def answer(self) -> Any:
        """The last one."""
        return self.page.locator("article.answer").last


@pytest_asyncio.fixture(loop_scope="module")
async def open_page(browser, tmp_path):
    """`await open_page(service, access, **context)`: a visit to a server in front of `service`."""
    runners, contexts, lives = [], [], []

    async def start(service: ToldService | None = None, access: Access | None = None, **how: Any):
        service = service or ToldService()
        live = LiveState.open(tmp_path / f"live-{len(lives)}", service.card.name, time.time())
        lives.append(live)
        runner = await start_api(create_app(service, access, live=live), "127.0.0.1", 0)
        runners.append(runner)
        context = await browser.new_context(**how)
        contexts.append(context)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        visit = Visit(await context.new_page(), service, url, runner)
        await visit.open()
        return visit

    yield start
    for context in contexts:
        await context.close()
    for runner in runners:
        await runner.cleanup()
    for live in lives:
        live.close()
