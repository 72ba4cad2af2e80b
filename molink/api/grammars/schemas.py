"""The fields of a request that ask for a grammar: OpenAI's, and vLLM's."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from molink_scheduler.request import GRAMMAR_CHARS_MAX

CHOICES_MAX = 10_000
"""Most choices. Their characters are limited as a grammar's; this keeps reading them bounded."""

GrammarText = Annotated[str, Field(min_length=1, max_length=GRAMMAR_CHARS_MAX)]
Choices = Annotated[list[GrammarText], Field(min_length=1, max_length=CHOICES_MAX)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class JsonSchemaFormat(_Strict):
    """OpenAI's `json_schema`. The schema is followed whether or not it is `strict`; `name` and
    `description` change nothing."""

    name: str | None = None
    description: str | None = None
    schema_: Any = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Strict):
    """OpenAI's `response_format`: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Any = Field(default=None, alias="schema")
    """The schema, where clients of llama.cpp and Together put it, with either type of JSON."""


class StructuredOutputs(_Strict):
    """vLLM's `structured_outputs`: one of the first six."""

    json_: Any = Field(default=None, alias="json")
    """A JSON schema, as an object or as a string."""
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    """A grammar in Lark's syntax, or llama.cpp's GBNF."""
    structural_tag: GrammarText | None = None
    """Text with parts in JSON, as a string: `{"structures": [{"begin": ..., "schema": ..., "end":
    ...}], "triggers": [...]}`."""
    json_object: bool | None = None
    """True: any JSON object."""
    disable_fallback: bool | None = None
    """Changes nothing: there is nothing to fall back to."""
    disable_additional_properties: Literal[False] | None = None
    """Not served: say `additionalProperties` in the schema."""
    disable_any_whitespace: bool | None = None
    """Default false. True: no blanks between the parts of JSON."""
    whitespace_pattern: GrammarText | None = None
    """Default: a blank, or one or two line feeds and up to 20 blanks. Regular expression of what
    may stand between the parts of JSON."""
