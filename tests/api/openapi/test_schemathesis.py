"""Schemathesis makes requests from the document: none ends in a 5xx, no answer breaks the document.

It asks a real server in front of a scripted service: half of what it sends follows the document,
half breaks it. Seeds are fixed, so a failure comes again.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from molink.api import create_app, start_api
from molink.api.access import Access
from molink.api.admin import add_admin_routes
from molink.api.cluster_routes import add_plan_route
from molink.api.keys.store import KEY_PREFIX, ApiKey, KeyUsage
from molink.api.openapi.document import openapi_document
from molink.report.requests import KeyReport
from molink_scheduler.placement import Shortage
from tests.api.conftest import FakeService
from tests.api.test_admin import FakeAdmin
from tests.sweeps import swept

EXAMPLES = (8, 20)
"""Requests to each operation that follow the document, and as many that do not; the larger number
in `make sweeps`."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


KEY = ApiKey("k1", "", "admin", None, 0.0, None, None)


class OneKey:
    """The keys of a server that has one, an admin's without a rate."""

    clock = staticmethod(lambda: 1.0)

    def holds_keys(self) -> bool:
        return False

    def find(self, secret: str) -> ApiKey | None:
        return KEY if secret == f"{KEY_PREFIX}admin" else None

    def spend(self, key: ApiKey, now_s: float) -> None:
        return None

    def quota_left(self, key: ApiKey) -> None:
        return None

    def reports(self) -> tuple[KeyReport, ...]:
        return (KeyReport(KEY.key_id, KEY.name, 7),)

    def usage(self, key: ApiKey) -> KeyUsage:
        return KeyUsage()


def app_of() -> web.Application:
    app = create_app(FakeService(), Access(OneKey()))
    add_plan_route(app, "tiny/model", no_plan)
    add_admin_routes(app, FakeAdmin())
    return app


async def no_plan(split: str | None) -> Shortage:
    return Shortage(1, 1, 0, "too little")


@contextmanager
def served() -> Iterator[str]:
    """The URL of a server that runs in a thread of its own."""
    loop, urls, stop = asyncio.new_event_loop(), [], asyncio.Event()
    ready = threading.Event()

    async def serve() -> None:
        runner = await start_api(app_of(), "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def url():
    with served() as url:
        yield url


def operations() -> dict[str, APIOperation]:
    schema = schemathesis.openapi.from_dict(openapi_document(app_of()))
    return {one.ok().label: one.ok() for one in schema.get_all_operations()}


OPERATIONS = operations()


@pytest.mark.parametrize("examples", swept(EXAMPLES, of=1))
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", OPERATIONS)
def test_answers_are_as_the_document_says(url, label, mode, examples):
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {KEY_PREFIX}admin"

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(OPERATIONS[label].as_strategy(generation_mode=mode))
    def asked(case):
        case.call_and_validate(base_url=url, session=session, checks=CHECKS)

    asked()
