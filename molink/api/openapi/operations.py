"""Operations of `/openapi.json`: what it says of each endpoint beyond its route and handler."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel

from molink.api.anthropic.schemas import CountTokensBody, MessagesBody
from molink.api.openai.batches.schemas import BatchBody
from molink.api.openai.chat_schemas import ChatBody
from molink.api.openai.responses.schemas import ResponsesBody
from molink.api.openapi import answers
from molink.api.schemas import CompletionBody, GenerateBody
from molink.api.vllm.tokenize import DetokenizeBody, TokenizeBody
from molink.report.cell import CellReport
from molink.report.cluster import ClusterReport
from molink.report.events import EventsReport
from molink.report.findings import FindingsReport
from molink.report.orders import CachesCleared, IntakeChanged, InviteMade, NodeOrdered
from molink.report.requests import RequestsReport

STATUSES: Mapping[int, str] = {
    400: "A field is wrong, or cannot be honoured.",
    401: "A key is wanted and none was sent, or one that is not known, expired or revoked.",
    403: "The key does not open this, or the page's origin or the server's name is not allowed.",
    404: "There is nothing here, or no model of this name.",
    408: "The body did not come in time.",
    409: "It has ended, or something under way needs it.",
    413: "The body is too large.",
    415: "The body is no JSON by its content type.",
    429: "The key's rate or the caller's share is used up.",
    503: "No ring serves now; `Retry-After` says when to ask again.",
    504: "The request's `timeout_s` ran out before the first token.",
    507: "The server's disk is full.",
}
"""Why each error is answered."""

OF_POSTS = (400, 401, 403, 408, 413, 415, 429, 503)
OF_COUNTS = (*OF_POSTS, 404)
OF_ANSWERS = (*OF_COUNTS, 504)
OF_ORDERS = (400, 401, 403, 408, 413, 415, 503)
OF_GETS = (401, 403)
OF_FILES = (*OF_GETS, 400, 404, 503, 507)


@dataclass(frozen=True, slots=True)
class Operation:
    """One endpoint, as its users see it."""

    tag: str
    summary: str
    answer: type | None = None
    """None: an object of which no more is promised, or `content_type`."""
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = OF_GETS
    error: type = answers.ErrorAnswer
    is_streamed: bool = False
    """Whether `"stream": true` makes it server-sent events."""
    is_open: bool = False
    """Whether it never needs a key."""
    is_unready_an_answer: bool = False
    """Whether 503 is answered in the shape of 200."""
    content_type: str = "application/json"
    query: Mapping[str, Mapping[str, Any]] | None = None
    """Schema of each parameter of the query."""
    fields: Mapping[str, Mapping[str, Any]] | None = None
    """Schema of each field of a short body."""
    orders: tuple[str, ...] = ()
    """Values that the path's `order` may have."""
    example: Mapping[str, Any] | None = None
    """Example of a body."""


INFERENCE, SERVER, CLUSTER = "Inference", "Server", "Cluster"

HELLO = {"role": "user", "content": "Tell me of rings."}


def _generates(
    summary: str,
    answer: type,
    body: type[BaseModel],
    example: Mapping[str, Any],
    error: type = answers.ErrorAnswer,
    errors: tuple[int, ...] = OF_ANSWERS,
) -> Operation:
    """An endpoint that answers, whole or streamed; with OF_COUNTS it generates nothing."""
    is_streamed = errors == OF_ANSWERS
    return Operation(
        INFERENCE, summary, answer, body, errors, error, is_streamed=is_streamed, example=example
    )


_counts = partial(_generates, errors=OF_COUNTS)
"""An endpoint that turns text into tokens, or the other way."""


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): _generates(
        "Continue a conversation",
        answers.ChatAnswer,
        ChatBody,
        {"messages": [HELLO], "max_completion_tokens": 64, "stream": True},
    ),
    ("POST", "/v1/completions"): _generates(
        "Continue one or several prompts",
        answers.CompletionAnswer,
        CompletionBody,
        {"prompt": "Once upon a time", "max_tokens": 64, "stream": True},
    ),
    ("POST", "/generate"): _generates(
        "Continue a prompt, with token ids and timing",
        answers.GenerateAnswer,
        GenerateBody,
        {"prompt": "Once upon a time", "max_tokens": 64},
    ),
    ("POST", "/v1/responses"): _generates(
        "Continue a conversation, as OpenAI's Responses",
        answers.ResponsesAnswer,
        ResponsesBody,
        {"input": "Tell me of rings.", "max_output_tokens": 64},
    ),
    ("GET", "/generate/{id}"): Operation(
        INFERENCE,
        "Read an answer again, as far as it is",
        answers.GeneratedAnswer,
        errors=(*OF_GETS, 404, 503),
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        INFERENCE,
        "Read a response again, as far as it is",
        answers.ResponsesAnswer,
        errors=(*OF_GETS, 400, 404, 503),
        is_streamed=True,
        query={
            "stream": {"type": "boolean"},
            "starting_after": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
        },
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        INFERENCE,
        "End a response in the background",
        answers.ResponsesAnswer,
        errors=(*OF_GETS, 400, 404, 415, 503),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        INFERENCE, "Forget a response", errors=(*OF_GETS, 400, 404, 503)
    ),
    ("POST", "/v1/responses/input_tokens"): _counts(
        "Count the tokens of a conversation, as OpenAI's Responses",
        answers.TokenCount,
        ResponsesBody,
        {"input": "Tell me of rings."},
    ),
    ("POST", "/v1/files"): Operation(
        INFERENCE,
        "Keep a file of requests for a batch (a form with `purpose` and `file`)",
        errors=(*OF_FILES, 408, 413, 415, 429),
    ),
    ("GET", "/v1/files"): Operation(INFERENCE, "List your files", errors=OF_FILES),
    ("GET", "/v1/files/{id}"): Operation(INFERENCE, "Describe a file", errors=OF_FILES),
    ("DELETE", "/v1/files/{id}"): Operation(INFERENCE, "Remove a file", errors=(*OF_FILES, 409)),
    ("GET", "/v1/files/{id}/content"): Operation(
        INFERENCE, "Read a file", errors=OF_FILES, content_type="application/jsonl"
    ),
    ("POST", "/v1/batches"): Operation(
        INFERENCE,
        "Answer a file's requests in idle room",
        body=BatchBody,
        errors=(*OF_COUNTS, 507),
        example={
            "input_file_id": "file-1",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
    ),
    ("GET", "/v1/batches"): Operation(INFERENCE, "List your batches", errors=OF_FILES),
    ("GET", "/v1/batches/{id}"): Operation(INFERENCE, "See how far a batch is", errors=OF_FILES),
    ("POST", "/v1/batches/{id}/cancel"): Operation(
        INFERENCE, "Cancel a batch", errors=(*OF_FILES, 409, 415, 429)
    ),
    ("POST", "/v1/messages"): _generates(
        "Continue a conversation, as Anthropic's Messages",
        answers.MessagesAnswer,
        MessagesBody,
        {"model": "demo", "max_tokens": 64, "messages": [HELLO]},
        answers.AnthropicError,
    ),
    ("POST", "/v1/messages/count_tokens"): _counts(
        "Count the tokens of a conversation",
        answers.TokenCount,
        CountTokensBody,
        {"model": "demo", "messages": [HELLO]},
        answers.AnthropicError,
    ),
    ("POST", "/tokenize"): _counts(
        "Token ids of a prompt or a conversation",
        answers.TokenizeAnswer,
        TokenizeBody,
        {"prompt": "Once upon a time"},
    ),
    ("POST", "/detokenize"): _counts(
        "The text of token ids", answers.DetokenizeAnswer, DetokenizeBody, {"tokens": [1, 2, 3]}
    ),
    ("GET", "/v1/models"): Operation(INFERENCE, "List the model's names", answers.ModelList),
    ("GET", "/v1/models/{model}"): Operation(
        INFERENCE, "Show one of them", answers.ModelEntry, errors=(*OF_GETS, 404)
    ),
    ("GET", "/health"): Operation(
        SERVER,
        "Whether requests are accepted",
        answers.Health,
        errors=(),
        is_open=True,
        is_unready_an_answer=True,
    ),
    ("GET", "/"): Operation(
        SERVER, "A page to chat in", errors=(), is_open=True, content_type="text/html"
    ),
    ("GET", "/ring"): Operation(SERVER, "The rings, as the page shows them"),
    ("GET", "/openapi.json"): Operation(SERVER, "This document", errors=(), is_open=True),
    ("GET", "/docs"): Operation(
        SERVER, "A page to try the API", errors=(), is_open=True, content_type="text/html"
    ),
    ("GET", "/cluster"): Operation(CLUSTER, "Stages, links and load of the rings", ClusterReport),
    ("GET", "/cluster/requests"): Operation(CLUSTER, "Timelines of requests", RequestsReport),
    ("GET", "/cluster/events"): Operation(
        CLUSTER,
        "What has happened to the cluster",
        EventsReport,
        errors=(*OF_GETS, 400),
        query={"after": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}},
    ),
    ("GET", "/cluster/findings"): Operation(
        CLUSTER, "What stands out now, and what to do", FindingsReport
    ),
    ("GET", "/metrics"): Operation(CLUSTER, "Figures for Prometheus", content_type="text/plain"),
    ("POST", "/cluster/nodes/{id}/{order}"): Operation(
        CLUSTER,
        "Drain, resume or remove a node",
        NodeOrdered,
        errors=(*OF_ORDERS, 404),
        orders=("drain", "resume", "remove"),
    ),
    ("POST", "/cluster/invites"): Operation(
        CLUSTER,
        "Make an invite",
        InviteMade,
        errors=OF_ORDERS,
        fields={
            "expires_s": {"type": "number", "default": 86400},
            "uses": {"type": "integer", "default": 5},
            "name": {"type": "string", "default": ""},
        },
        example={"expires_s": 86400, "uses": 5, "name": "friends"},
    ),
    ("POST", "/cluster/intake"): Operation(
        CLUSTER,
        "Refuse new requests, or take them again",
        IntakeChanged,
        errors=OF_ORDERS,
        fields={"paused": {"type": "boolean"}},
        example={"paused": True},
    ),
    ("POST", "/cluster/cache/clear"): Operation(
        CLUSTER,
        "Forget what all rings have cached of prompts and answers",
        CachesCleared,
        errors=OF_ORDERS,
    ),
    ("GET", "/cell"): Operation(
        CLUSTER, "PCs that lend each other memory, or could", CellReport, errors=OF_ORDERS
    ),
    **{
        ("POST", f"/cell/{order}"): Operation(
            CLUSTER,
            what,
            CellReport,
            errors=(*OF_ORDERS, 404),
            fields={"pcs": {"type": "array", "items": {"type": "string"}}},
            example={"pcs": ["anna", "ben"]},
        )
        for order, what in (
            ("confirm", "Let two PCs of a LAN lend each other memory"),
            ("forget", "End what two PCs have lent each other"),
        )
    },
    ("GET", "/plan"): Operation(
        CLUSTER,
        "The best plan for the PCs that are here",
        answers.PlanAnswer,
        errors=(*OF_GETS, 400, 503),
        query={"split": {"type": "string", "enum": ["planned", "even"]}},
    ),
    ("GET", "/catalogue"): Operation(
        CLUSTER,
        "What each known model would be on the PCs that are here",
        answers.CatalogueAnswer,
        errors=(*OF_GETS, 503),
    ),
}
"""Operations by method and path, as in the document."""
