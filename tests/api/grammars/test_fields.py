"""Three ways to ask for a grammar, over HTTP and with the official client, and what is refused."""

import json

import openai
import pytest

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
BODIES = {
    GENERATE: {"prompt": "hi", "max_tokens": 2},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 2},
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAGS = {
    "triggers": ["<f"],
    "structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}],
}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}


async def post(http, url, path, **fields):
    async with http.post(url + path, json=BODIES[path] | fields) as response:
        return response.status, json.loads(await response.text())


def schema_in(grammar: str) -> dict:
    schema = json.loads(grammar)["grammars"][0]["json_schema"]
    schema.pop("x-guidance")
    return schema


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, SCHEMA),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, SCHEMA),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, SCHEMA),
        ({"response_format": {"type": "json_object"}}, {"type": "object"}),
        ({"guided_json": SCHEMA}, SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, SCHEMA),
        ({"structured_outputs": {"json_object": True}}, {"type": "object"}),
        ({"structured_outputs": {"json": SCHEMA, "disable_fallback": True}}, SCHEMA),
    ],
    ids=str,
)
async def test_a_schema_reaches_the_service(service, serve, http, path, fields, schema):
    status, _ = await post(http, await serve(service), path, **fields)
    assert status == 200
    (request,) = service.requests
    assert schema_in(request.sampling.grammar) == schema


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({"guided_regex": "a+b"}, "/a+b/"),
        ({"guided_choice": ["yes", "no"]}, '"yes" | "no"'),
        ({"guided_grammar": 'start: "x"'}, 'start: "x"'),
        ({"structured_outputs": {"regex": "a+b"}}, "/a+b/"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, '"yes" | "no"'),
        ({"structured_outputs": {"grammar": 'root ::= "x"'}}, 'start: "x"'),
        ({"structured_outputs": {"structural_tag": json.dumps(TAGS)}}, "<f"),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, "_flexible"),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[ ]"}}, '"[ ]"'),
    ],
    ids=str,
)
async def test_other_kinds_reach_the_service(service, serve, http, fields, holds):
    status, _ = await post(http, await serve(service), GENERATE, **fields)
    assert status == 200
    assert holds in service.requests[0].sampling.grammar


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None, "guided_json": None, "structured_outputs": None},
        {"structured_outputs": {"json_object": False}},
    ],
    ids=str,
)
async def test_without_a_wish_there_is_no_grammar(service, serve, http, fields):
    status, _ = await post(http, await serve(service), CHAT, **fields)
    assert (status, service.requests[0].sampling.grammar) == (200, "")


REFUSED = [
    ({"response_format": {"type": "yaml"}}, "response_format.type", "nothing else is served"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema' is missing"),
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"guided_json": 5}, "guided_json", "must be a JSON schema"),
    ({"guided_json": {"not": {}}}, "guided_json", "Unimplemented keys"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
    ({"guided_regex": ""}, "guided_regex", "is empty"),
    ({"guided_choice": []}, "guided_choice", "too short"),
    ({"guided_choice": "yes"}, "guided_choice", "must be a list"),
    ({"guided_grammar": "x" * 70_000}, "guided_grammar", "too long"),
    ({"guided_json": {"a": "x" * 70_000}}, "guided_json", "longer than 65536 characters"),
    ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "exclude each other"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex", "exclude"),
    *(
        ({"structured_outputs": {"structural_tag": tag}}, "structured_outputs.structural_tag", says)
        for tag, says in (
            ("{}", "'begin' that starts with a trigger"),
            ("[", "cannot be followed"),
            (json.dumps(TAGS | {"triggers": ["<other"]}), "starts with a trigger"),
            (json.dumps(TAGS | {"triggers": [""]}), "starts with a trigger"),
            (json.dumps({"type": "structural_tag", "format": {}}), "takes 'triggers'"),
        )
    ),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "ends where its grammar does"),
]


@pytest.mark.parametrize(("fields", "param", "says"), REFUSED, ids=lambda value: str(value)[:40])
async def test_what_cannot_be_followed_is_a_400(service, serve, http, fields, param, says):
    status, answer = await post(http, await serve(service), CHAT, **fields)
    assert (status, answer["error"]["param"]) == (400, param)
    assert says in answer["error"]["message"]
    assert service.requests == []


async def test_a_model_without_a_tokenizer_refuses(bare_service, serve, http):
    url = await serve(bare_service)
    body = {"prompt_token_ids": [5], "max_tokens": 2, "guided_regex": "a"}
    async with http.post(url + GENERATE, json=body) as response:
        answer = json.loads(await response.text())
    assert (response.status, answer["error"]["param"]) == (400, "guided_regex")
    assert "no tokenizer" in answer["error"]["message"]


async def test_the_official_client_asks_for_a_schema(service, serve):
    async with openai.AsyncOpenAI(base_url=f"{await serve(service)}/v1", api_key="none") as client:
        await client.chat.completions.create(
            model="tiny/model",
            messages=[{"role": "user", "content": "hi"}],
            response_format={"type": "json_schema", "json_schema": NAMED},
            logit_bias={"7": -100},
            n=2,
        )
    grammars = {schema_in(one.sampling.grammar)["type"] for one in service.requests}
    assert (len(service.requests), grammars) == (2, {"object"})
    assert service.requests[0].sampling.logit_bias == ((7, -100.0),)
