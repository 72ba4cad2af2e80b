"""What each program asks, and how it says what went well."""

import sys

from pydantic import BaseModel

URL, MODEL = sys.argv[1:3]
ASK = "How warm is it in Oldford?"
LONG = "garden " * 30_000
"""More than the model's length."""

TOO_LONG = ("maximum context length is", "prompt is too long")
"""Words of OpenAI's and Anthropic's dialects that clients look for."""


class Weather(BaseModel):
    """Weather of a town."""

    town: str
    degrees: int


def get_weather(town: str) -> str:
    """Weather of a town."""
    return f"{town}: 21 degrees"


def tried(what, holds):
    """Say that something went well; end with an error where it did not."""
    assert holds, what
    print("ok", what, flush=True)


def tried_too_long(ask, kind=Exception, what="too long"):
    """Ask with a prompt that is too long: the client's own error must be of a kind, and say why."""
    try:
        said = f"an answer: {ask(LONG)}"
    except kind as error:
        said = _story(error)
    tried(what, any(words in said for words in TOO_LONG) or print(said[-2000:]))


def _story(error):
    """The words of an error, and of those that led to it."""
    before = error.__cause__ or error.__context__
    return f"{error} {_story(before) if before else ''}"
