"""The OpenAPI document (3.1), made from the routes, the models of bodies and those of answers.

It is made once, when it is first asked for: by then every part has added its routes. A route of
which `operations` knows nothing is described by its handler's docstring; a test finds it.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, RootModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from molink import __version__
from molink.api.headers.cors import OUR_HEADERS
from molink.api.openapi.answers import ServedBy
from molink.api.openapi.operations import OPERATIONS, STATUSES, Operation
from molink.json_object import JsonObject
from molink.report.plain import json_name

T = TypeVar("T")

DESCRIPTION = """\
Bodies are JSON. A field that would change the answer and cannot be honoured is refused (400); any
other that is not known is ignored and named in `X-MoLink-Ignored`. Null stands for a field's
default."""

UNDESCRIBED = Operation("Other", "")

SKIPPED_METHODS = frozenset({"HEAD", "OPTIONS", "*"})

SKIPPED_FOLDERS = ("/docs/", "/page/")
"""Folders of files that only pages ask for."""

_REF = "#/components/schemas/{model}"
_VALIDATION: JsonSchemaMode = "validation"

HEADERS: Mapping[str, JsonObject] = {
    name: {"description": said, "schema": {"type": "string"}} for name, said in OUR_HEADERS.items()
}

EVENT_SCHEMA = {
    "type": "object",
    "description": 'One event of a stream (`"stream": true`): JSON, the last with `molink` '
    "(`ServedBy`), then `[DONE]`. A failure in between is an event with `error`.",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}

REQUEST_ID_PARAMETER = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "An id of the client's own: up to 128 printable ASCII characters.",
    "schema": {"type": "string", "maxLength": 128},
}


def described_routes(app: web.Application) -> dict[tuple[str, str], web.AbstractRoute]:
    """The application's routes by method and path, as the document names them."""
    return {
        (route.method, route.resource.canonical): route
        for route in app.router.routes()
        if route.method not in SKIPPED_METHODS
        and route.resource is not None
        and not route.resource.canonical.startswith(SKIPPED_FOLDERS)
    }


def openapi_document(app: web.Application) -> JsonObject:
    """The document of all routes of an application."""
    routes = described_routes(app)
    operations = {key: OPERATIONS.get(key, UNDESCRIBED) for key in routes}
    paths: dict[str, JsonObject] = {}
    for (method, path), operation in operations.items():
        described = _operation(path, operation, routes[method, path])
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "MoLink", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _schemas(operations.values()),
            "headers": dict(HEADERS),
            "parameters": {"request_id": REQUEST_ID_PARAMETER},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "From `molink key create`. What shows the cluster needs one of "
                    "scope `watch`, what changes it one of scope `admin`; a server on loopback for "
                    "which no key was made needs none but for orders.",
                }
            },
        },
    }


def _schemas(operations: Iterable[Operation]) -> JsonObject:
    """Schemas of all models that occur, by name."""
    models: list[type] = [ServedBy]
    for operation in operations:
        parts = (operation.body, operation.answer, operation.error)
        models += [one for one in parts if one is not None]
    wanted = [(_described(model), _VALIDATION) for model in dict.fromkeys(models)]
    _, whole = models_json_schema(wanted, ref_template=_REF)
    found: JsonObject = whole["$defs"]
    return {name: one for name, one in found.items() if not name.startswith(_Described.__name__)}


class _Described(RootModel[T], Generic[T]):
    """Answer that is no model itself, with the words beneath its fields."""

    model_config = ConfigDict(alias_generator=json_name, use_attribute_docstrings=True)


def _described(answer: type) -> type[BaseModel]:
    return answer if issubclass(answer, BaseModel) else _Described[answer]  # type: ignore[valid-type]


def _operation(path: str, operation: Operation, route: web.AbstractRoute) -> JsonObject:
    words = _words_of(route.handler)
    if refused := sorted(getattr(operation.body, "unsupported", ())):
        words += f"\n\nRefused unless they mean what is usual: {', '.join(refused)}."
    described: JsonObject = {
        "operationId": _operation_id(route.method, path),
        "tags": [operation.tag],
        "summary": operation.summary or words.partition(".")[0],
        "description": words,
        "parameters": _parameters(path, operation),
        "responses": _responses(operation),
    }
    if (schema := _body_schema(operation)) is not None:
        content: JsonObject = {"schema": schema}
        if operation.example is not None:
            content["example"] = operation.example
        described["requestBody"] = {
            "required": operation.body is not None,
            "content": {"application/json": content},
        }
    if operation.is_open:
        described["security"] = []
    return described


def _body_schema(operation: Operation) -> JsonObject | None:
    if operation.body is not None:
        return _ref(operation.body)
    if operation.fields is None and not operation.orders:
        return None
    fields = {name: dict(schema) for name, schema in (operation.fields or {}).items()}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _operation_id(method: str, path: str) -> str:
    return re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_")


def _parameters(path: str, operation: Operation) -> list[JsonObject]:
    text: JsonObject = {"type": "string", "minLength": 1}
    orders = {"type": "string", "enum": list(operation.orders)}
    placed = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": orders if name == "order" else text,
        }
        for name in re.findall(r"{(\w+)}", path)
    ]
    asked = [
        {"name": name, "in": "query", "schema": dict(schema)}
        for name, schema in (operation.query or {}).items()
    ]
    return [*placed, *asked, {"$ref": "#/components/parameters/request_id"}]


def _responses(operation: Operation) -> JsonObject:
    content: JsonObject = {operation.content_type: {"schema": _answer_schema(operation)}}
    good: JsonObject = {"description": "As asked for.", "content": content}
    good["headers"] = {
        name: {"$ref": f"#/components/headers/{name}"} for name in _headers(operation)
    }
    responses = {"200": good}
    if operation.is_streamed:
        content["text/event-stream"] = {"schema": EVENT_SCHEMA}
    if operation.is_unready_an_answer:
        responses["503"] = {**good, "description": "They are not."}
    for status in sorted(operation.errors):
        responses[str(status)] = _error(STATUSES[status], operation.error)
    return responses


def _headers(operation: Operation) -> list[str]:
    return list(HEADERS) if operation.is_streamed else ["X-Request-Id"]


def _answer_schema(operation: Operation) -> JsonObject:
    if operation.answer is not None:
        return _ref(operation.answer)
    return {"type": "object" if operation.content_type == "application/json" else "string"}


def _error(why: str, shape: type) -> JsonObject:
    headers = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
    content = {"application/json": {"schema": _ref(shape)}}
    return {"description": why, "headers": headers, "content": content}


def _ref(model: type) -> JsonObject:
    return {"$ref": _REF.format(model=model.__name__)}


def _words_of(handler: Any) -> str:
    while isinstance(handler, partial):
        handler = handler.func
    return inspect.getdoc(handler) or ""
