"""Holes that were found in other servers of language models, tried here. Each test names its own.

They are quick and in process: what a whole cluster does is tried by `tools/experiments/guard`.
"""

import ast
import json
from pathlib import Path

import aiohttp
import pytest

from molink.api import create_app, start_api
from molink.api.chat import ChatFormat
from molink.api.chat.conversation import Conversation, Message
from molink.api.chat.prompt import _rendered
from molink.api.errors import ApiError
from molink.control.broker.routing import Router
from molink.control.broker.session import Session, Sessions
from molink.control.identity import KeyPair
from molink.control.messages.joining import JoinRequest
from molink.control.messages.sealing import open_sealed
from molink.control.messages.topics import PRESENCE, UnreadableError, read_message
from molink.errors import ControlError, FrameError, UserError
from molink.models import demo
from molink.stage_protocol.messages import decode_line
from molink.transport.peer.protocol import PEER_FRAMES
from molink.transport.relay.protocol import RELAY_FRAMES
from molink.wire.chunks import decode_link_frame
from molink.wire.elements import TensorHeader
from molink.wire.frames import Activations, decode_message, encode_message
from molink_scheduler.batch import Batch, BatchClass, Span
from tests.api.conftest import FakeService
from tests.control.raw_client import connect_packet
from tests.transport.link.two_ends import RECEIVER, STRANGER, TwoEnds, public

ROOT = Path(__file__).parents[2]
SOURCES = [
    file
    for folder in ("molink", "agent", "scheduler", "sim")
    for file in (ROOT / folder).rglob("*.py")
]

# -- code from the wire ---------------------------------------------------------------------------

PAIR = KeyPair.generate()
DECODERS = [
    lambda data: decode_message([data]),
    lambda data: decode_message([data, data]),
    decode_link_frame,
    RELAY_FRAMES.decode,
    PEER_FRAMES.decode,
    decode_line,
    lambda data: read_message(PRESENCE.of(PAIR.node_id), data, False),
    lambda data: open_sealed(data, PAIR, JoinRequest),
]


@pytest.mark.parametrize("decode", DECODERS)
def test_a_pickle_is_no_message_anywhere(decode, tmp_path):
    """vLLM CVE-2025-30165 and CVE-2025-32444, SGLang CVE-2026-3059 and CVE-2026-3060: bytes that a
    peer sent over ZeroMQ went through pickle."""
    ran = tmp_path / "ran"
    pickled = f"cposix\nsystem\n(S'touch {ran}'\ntR.".encode()
    with pytest.raises((FrameError, ControlError, UnreadableError)):
        decode(pickled)
    assert not ran.exists()


def test_nothing_that_runs_code_from_bytes_is_called():
    """The same class: `torch.load`, `yaml.load`, `eval`, and objects of ZeroMQ's own."""
    known = {"eval", "exec", "recv_pyobj", "send_pyobj", "unsafe_load"}
    modules = {("torch", "load"), ("yaml", "load"), ("marshal", "loads"), ("np", "load")}
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in known - {"exec"}:
                    raise AssertionError(f"{file}:{node.lineno} calls {name}")
                case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name)):
                    assert (of, name) not in modules and name not in known - {"eval"}, file


def test_a_chat_template_of_a_checkpoint_runs_no_code(tmp_path):
    """SGLang CVE-2026-5760: the template that comes with a model was rendered without a sandbox."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(demo.__path__[0]), trust_remote_code=False)
    ran = tmp_path / "ran"
    tokenizer.chat_template = (
        "{{ cycler.__init__.__globals__.os.popen('touch " + str(ran) + "').read() }}"
    )
    with pytest.raises(ApiError):
        _rendered(tokenizer, Conversation((Message("user", "hi"),)), ChatFormat.of(tokenizer))
    assert not ran.exists()


# -- sockets that are open to anybody -------------------------------------------------------------


def test_a_stranger_is_not_heard_on_a_link():
    """vLLM CVE-2025-30202: a ZeroMQ socket on all interfaces took everybody, and told them what it
    told its own."""
    with TwoEnds.encrypted(public(STRANGER)) as ends:
        assert not ends.sender.open(ends.link(public(RECEIVER)), 0.3)
        assert ends.inbound.messages_received == 0


class DeafTransport:
    """Connection of a client that reads nothing of what it is sent."""

    closed = False
    held = 0

    def write(self, data):
        self.held += len(data)

    def get_write_buffer_size(self):
        return self.held

    def is_closing(self):
        return self.closed

    def get_extra_info(self, name, default=None):
        return default

    def close(self):
        self.closed = True

    abort = pause_reading = resume_reading = close


async def test_a_subscriber_that_does_not_read_is_cut_off():
    """The same advisory: one that read nothing held the publisher up."""
    session, transport = Session(Router(), lambda *_: True, Sessions()), DeafTransport()
    session.connection_made(transport)
    session.data_received(connect_packet("node", "p", "node"))
    assert not transport.closed
    transport.held = 100 * 2**20
    session.end_if_lost()
    assert transport.closed


# -- control over HTTP ----------------------------------------------------------------------------


@pytest.fixture
async def url():
    service = FakeService()
    runner = await start_api(create_app(service), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


CHANGES = ("PUT", "DELETE", "PATCH")


@pytest.mark.parametrize("method", CHANGES)
async def test_nothing_is_changed_or_removed_over_http(url, method):
    """Ray CVE-2023-48022 and exo #1833: jobs and instances could be made and ended by anybody who
    reached the port. Here nobody can: invites, removals and keys are commands on the coordinator's
    own machine."""
    paths = ("/cluster", "/health", "/generate", "/v1/models", "/v1/models/tiny%2Fmodel", "/nodes")
    async with aiohttp.ClientSession() as session:
        for path in paths:
            async with session.request(method, f"{url}{path}") as response:
                assert response.status in (401, 403, 404, 405), path


def test_only_paths_that_compute_take_posts():
    app = create_app(FakeService())
    posts = {
        route.resource.canonical
        for route in app.router.routes()
        if route.method not in ("GET", "HEAD") and route.resource is not None
    }
    assert posts == {
        *("/generate", "/tokenize", "/detokenize", "/v1/completions", "/v1/chat/completions"),
        *("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/{id}"),
        "/v1/responses/{id}/cancel",
        *("/v1/messages", "/v1/messages/count_tokens"),
    }


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "%2e%2e/x", "/x"])
async def test_no_path_leads_out_of_what_is_served(url, name):
    """exo #2267: a name in a URL walked out of the models' directory, and DELETE removed what was
    there."""
    async with aiohttp.ClientSession() as session:
        for place in ("v1/models", "weights/files"):
            async with session.get(f"{url}/{place}/{name}") as response:
                body = await response.text()
                assert response.status in (401, 403, 404) and "root:" not in body


@pytest.mark.parametrize("method", ["GET", "POST", *CHANGES])
@pytest.mark.parametrize(
    "header", [{"Host": "attacker.example"}, {"Origin": "http://attacker.example"}]
)
async def test_a_page_in_a_browser_is_not_served(url, method, header):
    """Ray CVE-2026-27482: of the requests that a page can make to a server on loopback, or to a
    name that was made to point there, one method was forgotten."""
    async with aiohttp.ClientSession() as session:
        for path in ("/generate", "/v1/models", "/cluster"):
            headers = {"Content-Type": "application/json", **header}
            async with session.request(method, f"{url}{path}", headers=headers) as response:
                assert response.status in (401, 403, 405, 421), path


async def test_a_form_of_a_page_is_not_served(url):
    """The same: what a browser sends to others without asking them first is no JSON by its type."""
    async with aiohttp.ClientSession() as session:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            body, headers = b'{"prompt": "hi"}', {"Content-Type": kind}
            async with session.post(f"{url}/generate", data=body, headers=headers) as response:
                assert response.status == 415


# -- numbers that nobody has checked --------------------------------------------------------------

NUMBERS = {
    "/generate": ("max_tokens", "top_k", "min_p", "top_p", "temperature", "logprobs"),
    "/v1/completions": ("max_tokens", "n", "logprobs", "top_k"),
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens", "n", "top_logprobs"),
}


LIMITS = ("max_tokens", "max_completion_tokens")
"""Limits of an answer: what is over the room left is cut to it."""


def is_served(name: str, number: float) -> bool:
    """-1 means without a limit to clients; everything else out of bounds is refused."""
    return (name in LIMITS and (number > 0 or number == -1)) or (name == "top_k" and number == -1)


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize("number", [-1, -(2**31), 2**63, 1e308])
async def test_a_number_out_of_bounds_is_refused(url, path, number):
    """CVE-2026-21869 of llama.cpp: a negative count in a request's JSON moved memory backwards."""
    start = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    async with aiohttp.ClientSession() as session:
        for name in NUMBERS[path]:
            more = {"logprobs": True} if "chat" in path else {}
            body = {**start, **more, name: number}
            async with session.post(f"{url}{path}", json=body) as response:
                status = 200 if is_served(name, number) else 400
                assert response.status == status, (name, await response.text())


@pytest.mark.parametrize(("rows", "width"), [(-1, 4), (1, -4), (2**40, 2**40), (2, 4)])
def test_a_tensor_is_as_large_as_what_came_of_it(rows, width):
    """llama.cpp's RPC server: sizes and offsets that a peer announced were believed."""
    batch = Batch(1, BatchClass.PREFILL, -1, (Span(1, 0, 1, True),))
    good = Activations(batch, TensorHeader("float32", 1, 4), bytes(16))
    bad = Activations(batch, TensorHeader("float32", rows, width), bytes(16))
    assert decode_message(encode_message(good, 1))
    with pytest.raises(FrameError):
        decode_message(encode_message(bad, 1))


# -- what is not kept from others -----------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "docs/operating.md", "docs/volunteering.md"])
def test_people_are_told_who_sees_their_prompts(page):
    """Petals says on its first page that peers see what is computed, and verify nothing."""
    assert "security.md" in (ROOT / page).read_text(encoding="utf-8")
    said = " ".join((ROOT / "docs" / "security.md").read_text(encoding="utf-8").split())
    assert "can recover what users ask" in said
    assert "Answers are not verified" in said


def test_text_of_an_invite_is_no_path_and_no_code():
    from molink.control.messages.invites import Invite

    for text in ("molink1-../../etc/passwd", "molink1-" + "A" * 4096, "", json.dumps({})):
        with pytest.raises((UserError, ControlError)):
            Invite.parse(text)
