"""The reference of the REST API, from the document that a server gives at `/openapi.json`.

The application is made as a server makes it, with a service that serves nothing: only its routes
are looked at.
"""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from molink.api import create_app
from molink.api.admin import add_admin_routes
from molink.api.cluster_routes import add_plan_route
from molink.api.openapi.document import openapi_document
from molink.serving.events import EventLedger
from molink.serving.request_log import RequestLog

__all__ = ["api_page", "document"]

METHODS = ("get", "post", "put", "delete")

INTRODUCTION = """\
# REST API

What a server answers at its port for users. The same, for programs, is at `/openapi.json` of a
server, and `/docs` there has a form for each endpoint. Any key opens inference, what shows or
changes the cluster wants an admin's ([keys](keys.md#give-out-keys)); errors have OpenAI's
shape.
"""


def document() -> Mapping[str, Any]:
    """The OpenAPI document of all routes of `molink up`."""
    card = SimpleNamespace(tokenizer=None)
    log, events = RequestLog(), EventLedger()
    service = cast(Any, SimpleNamespace(card=card, request_log=log, events=events))
    app = create_app(service)
    add_plan_route(app, "", service)
    add_admin_routes(app, cast(Any, _AnyOrder()))
    return openapi_document(app)


class _AnyOrder:
    """Stands for the cluster that carries orders out."""

    def __getattr__(self, name: str) -> None:
        return None


def api_page() -> str:
    """All endpoints with their fields and errors, as Markdown."""
    found = document()
    lines = [INTRODUCTION]
    by_tag: dict[str, list[str]] = {}
    for path, methods in found["paths"].items():
        for method in METHODS:
            if method in methods:
                section = "\n".join(_section(f"{method.upper()} {path}", methods[method]))
                by_tag.setdefault(methods[method]["tags"][0], []).append(section)
    for tag, sections in by_tag.items():
        lines += [f"## {tag}", *sections]
    lines += ["## Objects", *_objects(found["components"]["schemas"])]
    return "\n\n".join(lines) + "\n"


def _section(title: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {title}\n"
    yield f"{operation['summary']}.\n"
    if (words := operation["description"].strip()) != operation["summary"]:
        yield f"{words}\n"
    if body := _schema(operation.get("requestBody", {})):
        yield f"Body: {_type(body)}\n"
    if answer := _schema(operation["responses"]["200"]):
        yield f"Answer: {_type(answer)}\n"
    for status, answer in operation["responses"].items():
        if status != "200":
            yield f"- {status}: {answer['description']}"


def _objects(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(schemas):
        schema = schemas[name]
        rows = [f"### {name}", schema.get("description", ""), ""]
        if fields := schema.get("properties"):
            rows += ["| field | type | |", "|---|---|---|"]
            rows += [_row(field, one) for field, one in fields.items()]
        yield "\n".join(rows)


def _row(field: str, schema: Mapping[str, Any]) -> str:
    return f"| `{field}` | {_type(schema)} | {_cell(schema.get('description', ''))} |"


def _schema(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    kinds = list(holder.get("content", {}).values())
    return kinds[0]["schema"] if kinds else {}


def _type(schema: Mapping[str, Any]) -> str:
    """In words; an object of its own is linked."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if either := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in either))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
