"""Answers written as they come, without what a terminal would obey; options of what is asked."""

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import click

from molink.json_object import JsonObject
from molink.printable import printable

Command = Callable[..., Any]
Server = tuple[str, str | None]
"""Its URL, and a key if it wants one."""

Write = Callable[[str], None]

_SAMPLING_OPTIONS = (
    click.option("--max-tokens", type=int, help="Longest answer; without it the server decides."),
    click.option("--temperature", type=float, help="0 always takes the likeliest token."),
    click.option("--top-p", type=float, help="Keep the likeliest tokens of this probability."),
    click.option("--top-k", type=int, help="Keep this many of the likeliest tokens."),
    click.option("--seed", type=int, help="The same seed gives the same answer."),
    click.option("--stop", multiple=True, help="End before this text; may be given again."),
)


def sampling_options(command: Command) -> Command:
    """Add the options of sampling; those not given are left to the server."""
    for option in reversed(_SAMPLING_OPTIONS):
        command = option(command)
    return command


def given(options: Mapping[str, object]) -> dict[str, object]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value not in (None, ())}


def write(text: str) -> None:
    """Write a piece of an answer at once."""
    click.echo(text, nl=False)


def joined_deltas(event: JsonObject, name: str) -> str:
    """What an event adds to a field of its choices' messages."""
    deltas = (choice["delta"] for choice in event.get("choices", ()))
    return "".join(delta.get(name) or "" for delta in deltas)


async def print_stream(
    server: Server,
    path: str,
    body: JsonObject,
    text_of: Callable[[JsonObject], str],
    *,
    pieces: list[str],
    write: Write = write,
    seen: Callable[[JsonObject], None] = lambda event: None,
) -> None:
    """Write the text of an answer's events as they come, and keep it in `pieces`; what the model
    thinks goes to standard error. `seen` gets each event."""
    from molink.client.api_client import ApiClient

    is_thinking = False
    async with ApiClient(*server) as client, aclosing(client.stream(path, body)) as events:
        async for event in events:
            seen(event)
            if thought := joined_deltas(event, "reasoning"):
                click.secho(printable(thought), dim=True, nl=False, err=True)
                is_thinking = True
            pieces.append(text_of(event))
            if is_thinking and pieces[-1]:
                click.echo(err=True)
                is_thinking = False
            write(printable(pieces[-1]))
