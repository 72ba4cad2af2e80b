"""Requests that cannot be begun in time are refused at once, in each API's own words; who does not
read his answer hinders nobody and misses nothing."""

import asyncio
import json
import socket
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.intake import Intake
from molink.coordinator.requests.serving_ring import ServingRing
from molink.coordinator.ring.forecaster import RingForecaster
from molink.coordinator.ring.live_sequence import UNREAD_EVENTS_MAX
from molink.errors import OverloadedError
from molink.serving.model_card import ModelCard
from molink.wire.frames import Cancel, FinishReason, Submit, TokenSample
from molink_scheduler.routing.admission import Targets
from molink_scheduler.routing.pace_estimator import PaceEstimator
from molink_scheduler.routing.ring_forecast import RingPace
from molink_scheduler.waiting_line import LINE_MIN, WaitingLine
from tests.coordinator.ring.ring_serving import Serving, until

SENTENCE = "9 requests run and 40 wait: send yours again later."
ASKED = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "model": "tiny/model"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/generate", {"prompt": "x"}, "requests"),
        ("/v1/completions", {"prompt": "x", "n": 3}, "requests"),
        ("/v1/chat/completions", ASKED, "requests"),
        ("/v1/responses", {"input": "x"}, "requests"),
        ("/v1/messages", ASKED, "rate_limit_error"),
    ],
)
async def test_each_api_says_so_in_its_own_words(service, serve, http, path, body, kind, stream):
    service.overload = OverloadedError(SENTENCE, 8.2)
    url = await serve(service)
    async with http.post(f"{url}{path}", json={**body, "stream": stream}) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "9")
        error = (await response.json())["error"]
    assert (error["message"], error["type"]) == (SENTENCE, kind)
    assert not service.requests, "nothing was asked of the ring"
    ended = service.request_log.ended
    assert {(one.finish_reason, one.error) for one in ended} == {("overloaded", SENTENCE)}
    minute = service.request_log.endings.report(service.request_log.clock())
    assert minute.refused == minute.ended == len(ended) == body.get("n", 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"prompt": "x"}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", ASKED),
    ],
)
async def test_a_request_may_have_targets_of_its_own(service, serve, http, path, body):
    url = await serve(service)
    targets = {"ttft_target_s": 2.5, "tpot_target_ms": 80, "tbt_target_ms": 200}
    async with http.post(f"{url}{path}", json={**body, **targets}) as response:
        assert response.status == 200
    assert service.requests[0].targets == Targets(2.5, 0.08, 0.2)


@pytest.mark.parametrize("stream", [False, True])
async def test_who_misses_its_targets_is_told_so_before_the_answer_begins(serve, http, stream):
    """Over a ring that is forecast to begin late, streams too: 429, not an answer that fails."""
    async with Serving() as s:
        s.client.forecaster.pace = PaceEstimator(RingPace(10.0, 0.1, 0.05))
        service = cluster()
        service.add(ServingRing(1, s.client, 1.0))
        url = await serve(service)
        body = {"prompt_token_ids": [3] * 40, "max_tokens": 4, "ttft_target_s": 2, "stream": stream}
        async with http.post(f"{url}/generate", json=body) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "120")
            assert "4.1 s" in (await response.json())["error"]["message"]
        assert not s.links.sent


def cluster(*lines: WaitingLine) -> ClusterService:
    found = ClusterService(ModelCard("m", 0, 100, 64, (), None), service_report)
    for number, line in enumerate(lines):
        client = SimpleNamespace(
            forecaster=RingForecaster(line),
            unready_reason=None,
            short_of_memory="",
            outstanding_tokens=9,
        )
        found.add(ServingRing(number, client, 1.0))
    return found


def full_line() -> WaitingLine:
    line = WaitingLine()
    for _ in range(300):
        line.joined(0.0)
    return line


def test_a_cluster_is_overloaded_when_all_its_rings_are():
    assert cluster().overload is None
    assert cluster(full_line(), WaitingLine()).overload is None
    overload = cluster(full_line(), full_line()).overload
    assert overload is not None and "0 requests run and 600 wait" in str(overload)


def test_a_ring_whose_memory_runs_short_takes_nobody_while_it_serves():
    short = cluster(WaitingLine())
    short.rings[0].client.short_of_memory = "pc-2"
    assert short.overload is not None
    short.rings[0].client.outstanding_tokens = 0
    assert short.overload is None


def test_a_ring_that_drains_takes_nobody():
    both = cluster(full_line(), WaitingLine())
    both.rings[1].draining = True
    assert both.overload is not None


def test_a_short_line_is_taken_however_little_may_wait():
    line = WaitingLine()
    for _ in range(LINE_MIN - 1):
        line.joined(0.0)
    none_may = cluster(line)
    none_may.intake = Intake(wait_s_max=0.0)
    assert none_may.overload is None


# -- a reader that does not read ------------------------------------------------------------------

BLANKS = 2**14
TOKENS = 3 * UNREAD_EVENTS_MAX


class Words:
    """Tokenizer whose every token is long, so that connections are full soon."""

    chat_template = None

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(f"{one:>{BLANKS}}" for one in token_ids)


async def unread(url: str) -> socket.socket:
    """A stream that is asked for on a connection with a small buffer, of which nothing is read."""
    place, loop = urlsplit(url), asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await loop.sock_connect(connection, (place.hostname, place.port))
    body = json.dumps({"prompt_token_ids": [1, 2], "max_tokens": TOKENS, "stream": True})
    head = (
        f"POST /generate HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    )
    await loop.sock_sendall(connection, head.encode())
    return connection


async def read_all(connection: socket.socket) -> bytes:
    loop, pieces = asyncio.get_running_loop(), []
    while piece := await loop.sock_recv(connection, 2**20):
        pieces.append(piece)
    return b"".join(pieces)


async def draw(s: Serving, answered: int) -> int:
    """Answer whatever is asked of the ring, until it is asked for nothing: one token in turn. How
    many of an answer have been drawn."""
    while isinstance(s.links.sent[-1], Submit):
        request_id = s.links.sent[-1].request.request_id
        end = FinishReason.LENGTH if answered + 1 == TOKENS else FinishReason.NONE
        sent = s.client.tokens_sent
        s.links.tell(TokenSample(request_id, answered % 100, end))
        await until(lambda sent=sent: s.client.tokens_sent > sent)
        answered += 1
        if end is not FinishReason.NONE:
            break
    return answered


async def test_a_client_that_stops_reading_gets_its_whole_answer_later(serve, http):
    """Over a real connection: it gives its place away, another is served, then it goes on."""
    async with Serving() as s:
        s.client.whole_card = ModelCard("m", 0, 100, 10 * TOKENS, (), Words())
        s.stages.clear()  # Nobody asks for their layers.
        service = cluster()
        service.add(ServingRing(1, s.client, 1.0))
        url = await serve(service)
        slow = await unread(url)
        await s.submitted()
        drawn = await draw(s, 0)
        assert drawn < TOKENS and isinstance(s.links.sent[-1], Cancel)

        body = {"prompt_token_ids": [3], "max_tokens": 1}
        other = asyncio.create_task(http.post(f"{url}/generate", json=body))
        request_id = await s.submitted(len(s.links.sent) + 1)
        s.links.tell(TokenSample(request_id, 7, FinishReason.LENGTH))
        assert (await (await other).json())["token_ids"] == [7]

        count = len(s.links.sent)
        reading = asyncio.create_task(read_all(slow))
        await until(lambda: len(s.links.sent) > count)
        while (drawn := await draw(s, drawn)) < TOKENS:
            await until(lambda: isinstance(s.links.sent[-1], Submit))
        said = await reading
        slow.close()
    lines = [one for one in said.replace(b"\r\n", b"\n").split(b"\n") if one.startswith(b"data: {")]
    got = [token for line in lines for token in json.loads(line[6:])["token_ids"]]
    assert got == [number % 100 for number in range(TOKENS)]
