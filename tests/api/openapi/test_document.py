"""The document says what the API does: all routes, all bodies, and it is valid itself."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from molink.api import create_app
from molink.api.admin import add_admin_routes
from molink.api.backend import Backend
from molink.api.cell import add_cell_routes
from molink.api.chat import ChatFormat
from molink.api.cluster_routes import add_catalogue_route, add_plan_route
from molink.api.openai.batches.endpoint import add_batch_routes
from molink.api.openai.chat_schemas import ChatBody
from molink.api.openai.logprobs import TokenTexts
from molink.api.openapi.document import described_routes, openapi_document
from molink.api.openapi.operations import OPERATIONS
from molink.api.schemas import CompletionBody, GenerateBody
from tests.api.test_admin import FakeAdmin
from tests.api.test_cell import FakeCell

BODIES = (ChatBody, CompletionBody, GenerateBody)
FOLDER = Path(__file__).parents[3] / "molink/api/openapi"


@pytest.fixture
def app(service, tmp_path):
    app = create_app(service)
    add_plan_route(app, "m", None)
    add_catalogue_route(app, None)
    add_admin_routes(app, FakeAdmin())
    add_cell_routes(app, FakeCell())
    backend = Backend(service, TokenTexts(service), ChatFormat.of(service.card.tokenizer))
    add_batch_routes(app, backend, tmp_path)
    return app


@pytest.fixture
def document(app):
    return openapi_document(app)


def test_every_route_is_described_and_nothing_else(app, document):
    routes = set(described_routes(app))
    assert routes == set(OPERATIONS)
    told = {(method.upper(), path) for path, ways in document["paths"].items() for method in ways}
    assert told == routes


def test_every_operation_says_what_it_is_for(document):
    operations = [one for ways in document["paths"].values() for one in ways.values()]
    assert all(one["summary"] and one["description"] for one in operations)
    assert len({one["operationId"] for one in operations}) == len(operations)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_field_of_a_body_is_described(document, body: type[BaseModel]):
    properties = document["components"]["schemas"][body.__name__]["properties"]
    assert set(properties) == set(body.model_fields)
    assert not [name for name, one in properties.items() if not one.get("description")]


def place_of(reference: str, document):
    place = document
    for name in reference.removeprefix("#/").split("/"):
        place = place.get(name, {})
    return place or None


def test_every_reference_leads_somewhere(document):
    references = set(re.findall(r"'\$ref': '([^']*)'", str(document)))
    assert "#/components/schemas/ChatBody" in references
    assert not [one for one in references if place_of(one, document) is None]


async def test_it_is_open_and_the_same_each_time(service, serve, http):
    url = await serve(service)
    told = []
    for _ in range(2):
        async with http.get(f"{url}/openapi.json") as response:
            assert (response.status, response.content_type) == (200, "application/json")
            told.append(await response.json())
    assert told[0] == told[1] and told[0]["openapi"] == "3.1.0"


async def test_the_page_asks_nobody_else(service, serve, http):
    url = await serve(service)
    async with http.get(f"{url}/docs") as response:
        assert (response.status, response.content_type) == (200, "text/html")
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        page = await response.text()
    for path in re.findall(r'(?:src|href)="([^"]*)"', page):
        async with http.get(f"{url}/{path}") as response:
            assert response.status == 200, path
    for file in FOLDER.glob("docs.*"):
        text = file.read_text()
        assert "://" not in text and "innerHTML" not in text, file.name
    assert "<style" not in page and "style=" not in page and "<script>" not in page
