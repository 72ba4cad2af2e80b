"""Schemas of a request's JSON: strict types, named limits, and null for "the default".

Strict means that "5" is no number and true is no integer: a client with a bug learns of it here,
not from odd text. 5.0 is the integer 5, and -1 is "no limit" where clients of other servers write
it so. Unknown fields are kept apart, to be named in the answer's headers; `unsupported`
has those that would change the answer and are not served (`openai.refused_fields`). Fields that can
take several shapes (`prompt`) are typed `Any` here and read by `requests`, which can name the one
thing that is wrong where a union of types would list every shape that did not match.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from molink.api.errors import NAME_CHARS_SHOWN
from molink.api.grammars.schemas import Choices, GrammarText, ResponseFormat, StructuredOutputs
from molink.api.openai.refused_fields import (
    NO_LIMITS,
    OF_ALL_ENDPOINTS,
    OF_COMPLETIONS,
    OF_GENERATE,
    FieldDefaults,
)
from molink_scheduler.request import (
    KV_BUDGET_MIN,
    LOGIT_BIAS_COUNT_MAX,
    LOGIT_BIAS_MAX,
    LOGPROBS_MAX,
    PRIORITY_MAX,
    STOP_COUNT_MAX,
)
from molink_scheduler.routing.admission import TPOT_TARGET_MS_MAX, TTFT_TARGET_S_MAX

CHOICES_MAX = 16
"""Largest `n`: each choice holds KV blocks of its own, and one request must not fill a small
ring."""

STOP_CHARS_MAX = 256
"""The tail holds back text of up to a stop string's length; a longer one would make streaming
stutter."""

STOPS_CHARS_MAX = 2048
"""Characters of all stop strings: each is compared with what is held, at every token."""

STOP_TOKEN_IDS_MAX = 256
"""Most stop tokens: they travel to the tail and are compared with each sampled token."""

MESSAGES_MAX = 10_000
"""Most messages, far beyond any context length; keeps the chat template's work bounded."""

CACHE_SALT_CHARS_MAX = 256
"""Most characters of a salt. It is hashed; clients send names, or random text."""

TIMEOUT_S_MAX = 86_400.0
"""A day."""

KEPT = {"kept": True}
"""Context of bodies that are written down to be read again: what is left out is left out there."""

TOOLS_MAX = 1024
"""Tools of one request: agents with some MCP servers bring hundreds, which the model is shown."""


LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

NO_LIMIT = 2**31 - 1
"""Length that -1 asks for: more than any model has, cut to what is left."""

SEED_MIN = -(2**63)
SEED_MAX = 2**64 - 1
"""Signed and unsigned 64-bit seeds are both taken; negative ones wrap around."""


def _stops(value: Any) -> Any:
    """Stop strings as a list, without null and the empty text, which stop nothing."""
    texts = list_only([value] if isinstance(value, str) else value)
    return [one for one in texts if one not in (None, "")]


def list_only(value: Any) -> Any:
    """`value`, which must be a list where a string would have been fine, too."""
    if not isinstance(value, list):
        raise ValueError("must be a string or a list: send one of them")
    return value


def _short_in_all(stops: list[str]) -> list[str]:
    if (count := sum(map(len, stops))) > STOPS_CHARS_MAX:
        raise ValueError(f"holds {count} characters: send at most {STOPS_CHARS_MAX} in all")
    return stops


def _whole(value: Any) -> Any:
    """A number without a fraction as a whole one: JavaScript and Lua have one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_minus_one(value: Any) -> bool:
    return isinstance(value, int | float) and value == -1


def _few_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > LOGIT_BIAS_COUNT_MAX:
        raise ValueError(f"holds {len(value)} entries: send at most {LOGIT_BIAS_COUNT_MAX}")
    return value


StopText = Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]
StopList = Annotated[list[StopText], Field(max_length=STOP_COUNT_MAX)]
StopTexts = Annotated[
    StopList, BeforeValidator(_stops, str | list[str | None]), AfterValidator(_short_in_all)
]
TokenId = Annotated[int, BeforeValidator(_whole)]
TokenIds = Annotated[list[TokenId], Field(max_length=STOP_TOKEN_IDS_MAX)]
Bias = Annotated[float, Field(ge=-LOGIT_BIAS_MAX, le=LOGIT_BIAS_MAX)]
LogitBias = Annotated[dict[str, Bias], BeforeValidator(_few_biases)]


TOKEN_IDS_SCHEMA = {
    "anyOf": [
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {"type": "null"},
    ]
}
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        *TOKEN_IDS_SCHEMA["anyOf"][:1],
        {"type": "array", "items": TOKEN_IDS_SCHEMA["anyOf"][0], "minItems": 1},
    ]
}
"""JSON schema of the two fields as `requests` reads them."""


class _Strict(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )


class Part(_Strict):
    """Part of a request's body."""


def type_tag(otherwise: str) -> Callable[[Any], str]:
    """Function that tells of which model a value is: its `type`, or `otherwise` without one."""

    def tag(value: Any) -> str:
        given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return otherwise if given is None else str(given)[:NAME_CHARS_SHOWN]

    return tag


class LeftOut(Part):
    """Part of a request of a type that is not served: the model is not shown it, and its type is
    among the names of what is ignored."""

    type: str

    @property
    def is_left_out(self) -> bool:
        """Whether the model is not shown it; a part of content may hold text."""
        return True

    @model_serializer(mode="wrap")
    def _without_payload(self, dump: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        return {"type": self.type} if info.context == KEPT and self.is_left_out else dump(self)


def belongs_here(own: str, other: str, elsewhere: str) -> Any:
    """Validator of a body that must have its conversation as `own`: a body that has `other` instead
    is sent where that belongs."""

    def check(fields: Any) -> Any:
        if isinstance(fields, dict) and other in fields and own not in fields:
            raise ValueError(f"is one of {elsewhere}, or its conversation as '{own}'")
        return fields

    return model_validator(mode="before")(check)


class StreamOptions(_Strict):
    """OpenAI's `stream_options`. `include_obfuscation` is accepted and does nothing."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Whether each chunk of a choice tells what it has cost so far, as vLLM's server does; needs
    `include_usage`. Benchmarks count tokens by it."""
    include_obfuscation: bool | None = None


class Body(_Strict):
    """Body of a request about the model. Null or absent means the default, which is given with
    each field."""

    unsupported: ClassVar[FieldDefaults] = {}
    """Fields that are not served, with the values that mean their default."""

    model: str | None = None
    """The served model; any other name is answered with 404."""

    @field_validator("*", mode="before")
    @classmethod
    def _whole_number(cls, value: Any) -> Any:
        return _whole(value)


class SamplingBody(Body):
    """Fields that all endpoints share which generate in OpenAI's words or our own."""

    unsupported = OF_ALL_ENDPOINTS
    max_tokens: int | None = Field(default=None, ge=1)
    """Default: 16 for completions, 128 for /generate, what is left of the model's length for
    chat, which -1 means everywhere. More than is left is cut to it."""
    min_tokens: int | None = Field(default=None, ge=0)
    """Default 0. Before so many tokens nothing but max_tokens ends the answer."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """Default: the model's own, else 1.0; 0 is greedy."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Default: the model's own, else 1.0; 0 keeps the likeliest token alone."""
    top_k: int | None = Field(default=None, ge=0, le=2**31)
    """Default: the model's own, else 0, or -1: every token is kept."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Default: the model's own, else 0.0."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Default 0.0."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Default 0.0."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    """Default: the model's own, else 1.0."""
    logit_bias: LogitBias | None = None
    """Default: none. By token id, in quotes: what to add to its logit, from -100 to 100."""
    response_format: ResponseFormat | None = None
    """Default: text. The answer is a JSON object, or matches a JSON schema."""
    structured_outputs: StructuredOutputs | None = None
    """Default: none. What the answer must match, as vLLM's present server takes it."""
    guided_json: Any = None
    """Default: none. As structured_outputs.json, and so on: vLLM's former names."""
    guided_regex: GrammarText | None = None
    """A regular expression."""
    guided_choice: Choices | None = None
    """Texts, one of which is the answer."""
    guided_grammar: GrammarText | None = None
    """A grammar in Lark's syntax, or llama.cpp's GBNF."""
    seed: int | None = Field(default=None, ge=SEED_MIN, le=SEED_MAX)
    """Default, or -1: drawn afresh for each request."""
    stop: StopTexts | None = None
    """Default: none. A string or a list of strings; the answer ends before the first that
    appears."""
    stop_token_ids: TokenIds | None = None
    """Default: none. Token ids that end the answer besides the model's end-of-sequence tokens."""
    skip_special_tokens: bool | None = None
    """Default true: the text leaves out what marks turns and ends."""
    ignore_eos: bool | None = None
    """Default false. True goes on after the model's end-of-sequence tokens, up to max_tokens."""
    stream: bool | None = None
    """Default false."""
    priority: int | None = Field(default=None, ge=-PRIORITY_MAX, le=PRIORITY_MAX)
    """Default: that of the API key, usually 0. Lower goes first where requests wait; below the
    key's only with an admin key, where keys are needed."""
    cache_salt: str | None = Field(default=None, max_length=CACHE_SALT_CHARS_MAX)
    """Default: that of the API key. Only requests of one salt share what was computed of prompts.
    Otherwise the time of an answer could tell a user what others have asked."""
    prompt_cache_key: str | None = Field(default=None, max_length=CACHE_SALT_CHARS_MAX)
    """Default: none. Name of a session: its requests go to the ring that served the last one, and
    what they share stays cached ten minutes beyond each."""
    timeout_s: float | None = Field(default=None, gt=0, le=TIMEOUT_S_MAX)
    """Default: none. Seconds from the request's arrival, waiting included, after which the answer
    ends (`finish_reason` "length", `stop_reason` "deadline"), or is an error with status 504 where
    no token has come."""
    ttft_target_s: float | None = Field(default=None, gt=0, le=TTFT_TARGET_S_MAX)
    """Default: the operator's. Seconds to the first token; a request that is forecast a later one
    is refused at once, with status 429 and Retry-After."""
    tpot_target_ms: float | None = Field(default=None, gt=0, le=TPOT_TARGET_MS_MAX)
    """Default: the operator's. Mean milliseconds between two tokens, in the same way."""
    tbt_target_ms: float | None = Field(default=None, gt=0, le=TPOT_TARGET_MS_MAX)
    """Default: the operator's. Milliseconds that 99 % of the gaps between tokens stay within, or
    the percentage that the operator has set, in the same way."""
    kv_budget: float | None = Field(default=None, ge=KV_BUDGET_MIN, le=1)
    """Default 1. Share of the prompt's tokens that the answer is computed with, in all layers but
    the first three: those that the prompt's end attends to. Less is sooner, and less exact."""

    @field_validator("top_k", "seed", "min_tokens", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return None if _is_minus_one(value) else value

    @field_validator("repetition_penalty", mode="before")
    @classmethod
    def _no_penalty(cls, value: Any) -> Any:
        return 1.0 if type(value) in (int, float) and value == 0 else value

    @field_validator(*LENGTHS, mode="before", check_fields=False)
    @classmethod
    def _no_limit(cls, value: Any) -> Any:
        return NO_LIMIT if value in NO_LIMITS else value


class GenerateBody(SamplingBody):
    """Body of `POST /generate`, with one of `prompt` and `prompt_token_ids`."""

    unsupported = OF_GENERATE
    prompt: str | None = None
    """Text to continue."""
    prompt_token_ids: Annotated[Any, WithJsonSchema(TOKEN_IDS_SCHEMA)] = None
    """The same as token ids."""
    prompt_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    """Default: none. k: of each token of the prompt and of the k most likely at its place."""
    logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    """Default: none. k: the log-probability of each token and of the k most likely ones at its
    place."""


class CompletionBody(SamplingBody):
    """Body of `POST /v1/completions`."""

    unsupported = OF_COMPLETIONS
    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)] = None
    """A string, a list of strings, a list of token ids, or a list of such lists."""
    suffix: str | None = None
    """Default: none. What comes behind the answer, for a model that was trained to fill gaps."""
    n: int | None = Field(default=None, ge=1, le=CHOICES_MAX)
    """Default 1: answers for each prompt."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Default 16. 0, with `echo`: only the prompt."""
    echo: bool | None = None
    """Default false. True: the text begins with the prompt, `logprobs` with its tokens."""
    prompt_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    """Default: none. k: of each token of the prompt and of the k most likely at its place."""
    best_of: int | None = Field(default=None, ge=1, le=CHOICES_MAX)
    """Default: `n`. Of so many answers to each prompt the `n` with the highest log-probability per
    token are given; not streamed."""
    logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    """Default: none. k: the log-probability of each token and of the k most likely ones at its
    place."""
    stream_options: StreamOptions | None = None
    """Options of a stream: `{"include_usage": true}` adds an event with the counted tokens."""

    @field_validator("best_of")
    @classmethod
    def _best_of_at_least_n(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value < (info.data.get("n") or 1):
            raise ValueError("must be 'n' or more: send a larger number")
        return value
