"""The REST API: what a body may hold, what is answered, under which paths; and all schemas."""

import asyncio
import json
import re
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import BaseModel

from molink.agents_api.app import create_agents_app
from molink.api import create_app, start_api
from molink.api.cluster_routes import add_plan_route
from molink.api.openai.chat_schemas import ChatBody
from molink.api.schemas import CompletionBody, GenerateBody
from molink.checkpoint.weights_manifest import WeightsManifest
from molink.control.messages.joining import JoinAnswer, JoinRequest
from molink.control.messages.topics import ALL_TOPICS
from molink.control.versions import PROTOCOL_HEADER
from molink.errors import ControlError, JoinRefusedError, RingError
from molink.report.nodes import ContributionReport
from molink.wire.protocol import PROTOCOL_VERSION
from molink_agent.daemon.membership import Membership
from molink_agent.data_files import Known
from tests.api.conftest import FakeService
from tests.golden.codec import Codec
from tests.golden.values_placement import plan, shortage
from tests.golden.values_weights import manifest

# -- schemas --------------------------------------------------------------------------------------

WORDS = ("title", "description")


def schema_of(model: type[BaseModel]) -> str:
    """Fields, their types and bounds, without the names of classes and what is said of them."""
    whole = model.model_json_schema()
    shapes = whole.pop("$defs", {})
    return json.dumps(plain(whole, shapes), indent=0, sort_keys=True)


def plain(schema: Any, shapes: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [plain(one, shapes) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        shape = shapes[schema["$ref"].removeprefix("#/$defs/")]
        return plain({**shape, **{k: v for k, v in schema.items() if k != "$ref"}}, shapes)
    kept = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: plain(one, shapes) for name, one in value.items()}
        elif key not in WORDS:
            kept[key] = plain(value, shapes)
    return kept


SCHEMAS = Codec("schemas", schema_of)
SCHEMAS.add(
    api_generate=lambda: GenerateBody,
    api_completion=lambda: CompletionBody,
    api_chat=lambda: ChatBody,
    join_request=lambda: JoinRequest,
    join_answer=lambda: JoinAnswer,
    membership_file=lambda: Membership,
    known_file=lambda: Known,
    weights_manifest=lambda: WeightsManifest,
)
for one_topic in ALL_TOPICS:
    levels = one_topic.path.split("/")
    key = f"topic_{levels[2]}_{levels[-1].replace('-', '_')}"
    SCHEMAS.add(**{key: lambda message=one_topic.message: message})

# -- answers --------------------------------------------------------------------------------------

VOLATILE = (
    (r'"(id)":\s?"(gen|cmpl|chatcmpl)-[0-9a-f]{24}"', r'"\1": "\2-ID"'),
    (r'"(created)":\s?\d+(?=,"model")', r'"\1": 0'),
    (r'(?<=[{,])"(ttft_s|tpot_s|total_s)":[-0-9.e]+', r'"\1":0'),
    (r'"request_id":"[0-9a-f]{24}"', '"request_id":"ID"'),
    (r'(?<=[{,])"(queue_ms|prefill_ms|decode_ms)":[0-9.]+', r'"\1":0'),
)
HEADERS = ("Content-Type", "Retry-After", "Allow", "Cache-Control", "X-Accel-Buffering")
HEADERS += ("X-MoLink-Ignored", "X-MoLink-Ring")
MORE_HEADERS = ("Content-Range", "Accept-Ranges", "WWW-Authenticate", "Content-Length")


class Shelf:
    """Of weights, hashed or not."""

    def __init__(self, ready):
        self.failure, self.progress, self.files = None, 0.25, {}
        self.manifest_json = manifest().model_dump_json().encode() if ready else None


class Desk:
    """Lets nobody in."""

    async def join(self, body: bytes) -> bytes:
        if body == b"sealed":
            return b'{"sealed": ""}'
        kind = JoinRefusedError if body == b"known" else ControlError
        raise kind("This is no sealed message: check the address of the other side.")


def app_of(service: FakeService) -> web.Application:
    async def found(split: str | None):
        return shortage() if split == "even" else plan()

    app = create_app(service)
    add_plan_route(app, "org/model", found)
    return app


def given(pc: str) -> dict[str, int]:
    return ContributionReport(uptime_s=720, token_layers=12345, bytes_sent=1_250_000)


def answer_of(ask) -> str:
    """Status, headers and body of one request."""
    (method, path, more), service, ready = ask
    is_agents = path.startswith(("/agents", "/weights"))

    async def run() -> str:
        app = app_of(service)
        if is_agents:
            app = create_agents_app(Desk(), Shelf(ready), {"token": "pc"}.get, given)
        runner = await start_api(app, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, **more) as got:
            names = HEADERS + (MORE_HEADERS if path.startswith("/weights") else ())
            lines = [str(got.status)]
            lines += [f"{name}: {got.headers[name]}" for name in names if name in got.headers]
            body = (await got.read()).decode()
        await runner.cleanup()
        for volatile, instead in VOLATILE:
            body = re.sub(volatile, instead, body)
        return "\n".join([*lines, "", body])

    return asyncio.run(run())


ANSWERS = Codec("api-answers", answer_of)

JSON = {"Content-Type": "application/json"}
AUTHORISED = {"headers": {"Authorization": "Bearer token", PROTOCOL_HEADER: str(PROTOCOL_VERSION)}}


def asks(method: str, path: str, service: FakeService | None = None, ready: bool = True, **more):
    return lambda: ((method, path, more), service or FakeService(), ready)


def posts(path: str, service: FakeService | None = None, **body):
    return asks("POST", path, service, json=body)


TALK = [{"role": "user", "content": "hällo"}]
USAGE = {"include_usage": True}

ANSWERS.add(
    models=asks("GET", "/v1/models"),
    model=asks("GET", "/v1/models/tiny/model"),
    model_unknown=asks("GET", "/v1/models/other"),
    health=asks("GET", "/health"),
    health_unready=asks("GET", "/health", FakeService(unready_reason="stage 2 is loading")),
    plan=asks("GET", "/plan"),
    plan_of_a_shortage=asks("GET", "/plan?split=even"),
    plan_of_an_unknown_split=asks("GET", "/plan?split=odd"),
    generate=posts("/generate", prompt="hi", max_tokens=2),
    generate_of_ids=posts(
        "/generate", prompt_token_ids=[5], max_tokens=1, logprobs=3, temperature=0
    ),
    generate_streamed=posts("/generate", prompt="hi", max_tokens=2, stream=True, logprobs=1),
    completion=posts("/v1/completions", prompt=["a", "b"], n=2, max_tokens=1),
    completion_with_logprobs=posts("/v1/completions", prompt="a", max_tokens=2, logprobs=3),
    completion_streamed=posts(
        "/v1/completions", prompt="a", max_tokens=2, stream=True, stream_options=USAGE
    ),
    chat=posts("/v1/chat/completions", messages=TALK, max_tokens=2),
    chat_that_stops=posts("/v1/chat/completions", FakeService(token_limit=1), messages=TALK),
    chat_with_logprobs=posts(
        "/v1/chat/completions", messages=TALK, max_tokens=1, logprobs=True, top_logprobs=3
    ),
    chat_streamed=posts(
        "/v1/chat/completions",
        messages=TALK,
        max_completion_tokens=2,
        stream=True,
        stream_options=USAGE,
        logprobs=True,
    ),
    error_of_a_field=posts("/v1/completions", prompt="a", max_tokens="5"),
    answer_to_an_unknown_field=posts("/generate", prompt="a", max_token=5),
    error_of_an_unsupported_field=posts("/v1/completions", prompt="a", suffix="b"),
    error_of_no_json=asks("POST", "/generate", data=b"{", headers=JSON),
    error_of_the_method=asks("GET", "/generate"),
    error_of_the_path=asks("GET", "/v2"),
    error_of_the_ring=posts(
        "/generate", FakeService(failure=RingError("The ring is lost.")), prompt="a"
    ),
    error_in_a_stream=posts(
        "/generate",
        FakeService(failure=RingError("The ring is lost."), events_before_failure=1),
        prompt="a",
        stream=True,
    ),
    join=asks("POST", "/agents/join", data=b"sealed"),
    join_refused=asks("POST", "/agents/join", data=b"known"),
    join_of_nobody=asks("POST", "/agents/join", data=b"something"),
    weights_manifest=asks("GET", "/weights/manifest", **AUTHORISED),
    weights_being_hashed=asks("GET", "/weights/manifest", ready=False, **AUTHORISED),
    weights_without_a_token=asks("GET", "/weights/manifest"),
    weights_with_another_token=asks(
        "GET", "/weights/manifest", headers={"Authorization": "Bearer other"}
    ),
    given_by_a_pc=asks("GET", "/agents/given", **AUTHORISED),
    given_without_a_token=asks("GET", "/agents/given"),
    weights_of_an_unknown_file=asks("GET", "/weights/files/x", **AUTHORISED),
)


def routes(app: web.Application) -> str:
    found = {f"{one.method} {one.resource.canonical}" for one in app.router.routes()}
    return "\n".join(sorted(found))


ROUTES = Codec("api-routes", routes)
ROUTES.add(
    of_the_users_api=lambda: app_of(FakeService()),
    of_the_agents_port=lambda: create_agents_app(
        Desk(), Shelf(True), {}.get, given, thanks_for=lambda pc, agrees: {}
    ),
)

CODECS = (SCHEMAS, ANSWERS, ROUTES)
