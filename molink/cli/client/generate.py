"""`molink generate`: one text continued, for pipes and scripts."""

import asyncio
import sys
from typing import Any

import click

from molink.cli.client.streaming import given, print_stream, sampling_options
from molink.cli.options import key_option, url_option
from molink.errors import UserError
from molink.utf8 import utf8_text

PROMPT_BYTES_MAX = 32 * 2**20
"""Bytes read from standard input: as many as the server takes."""


@click.command()
@click.argument("prompt")
@url_option
@key_option
@sampling_options
def generate(prompt: str, url: str, key: str | None, **sampling: Any) -> None:
    """Continue PROMPT, streaming the text to standard output. With - it is read from standard
    input."""
    body = {"prompt": _read_prompt() if prompt == "-" else prompt, **given(sampling)}
    asyncio.run(print_stream((url, key), "/generate", body, lambda one: one["text"], pieces=[]))
    click.echo()


def _read_prompt() -> str:
    """What a pipe or a file holds, but for the end of its last line."""
    raw = sys.stdin.buffer.read(PROMPT_BYTES_MAX + 1)
    if len(raw) > PROMPT_BYTES_MAX:
        raise UserError(f"The prompt is over {PROMPT_BYTES_MAX} bytes: give a shorter one.")
    try:
        text = utf8_text(raw)
    except ValueError as error:
        raise UserError(f"The prompt cannot be read, {error}: save it as UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")
