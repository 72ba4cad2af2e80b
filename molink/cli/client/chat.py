"""`molink chat`: a conversation in a terminal, or line by line from a pipe.

What begins with a slash is for the command and never sent: people type the words of other programs,
and a model answers `/help` with anything. Text of several lines, or one that begins with a slash,
goes between lines of three quotes.
"""

import asyncio
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from molink.cli.client.streaming import (
    Server,
    given,
    joined_deltas,
    print_stream,
    sampling_options,
    write,
)
from molink.cli.options import key_option, url_option
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.printable import printable, printable_line
from molink.terminal.word_wrap import WordWrap

QUOTES = '"""'
SLASH_WORD = re.compile(r"/([a-z]+|\?)(?:\s+(.*))?", re.DOTALL)
"""A word of the command with what follows it; `/etc/hosts` is none."""

LEAVING = frozenset({"exit", "bye", "quit"})
ALSO = {"?": "help", "clear": "new", "reset": "new", "regenerate": "retry"}
"""Words that other programs have for ours."""

HELP = f"""\
/new            start over
/retry          ask the last question again
/system TEXT    tell the model its role, and start over; without TEXT it has none
/save FILE      write the conversation: as JSON where FILE ends in .json, else as text
/exit           leave, as Ctrl-D does; Ctrl-C stops an answer
{QUOTES}             begins and ends a message of several lines"""


@click.command()
@url_option
@key_option
@click.option("--system", help="What the model is told about its role.")
@sampling_options
def chat(url: str, key: str | None, system: str | None, **sampling: Any) -> None:
    """Talk with the served model.

    /help lists what else can be typed; /exit or Ctrl-D leaves; Ctrl-C stops the present answer.
    From a pipe, each line is a message.
    """
    talk = Talk((url, key), given(sampling), system, is_shown=sys.stdin.isatty())
    if talk.is_shown:
        click.echo(asyncio.run(_banner((url, key))), err=True)
    for message in _messages(talk.is_shown):
        try:
            if not talk.take(message):
                return
        except UserError as error:
            if not talk.is_shown:
                raise
            click.echo(f"molink: {printable(str(error))}", err=True)


async def _banner(server: Server) -> str:
    """Who answers, where. Raises UserError where nobody does."""
    from molink.client.api_client import ApiClient, server_url

    async with ApiClient(*server) as client:
        listed = await client.get("/v1/models")
    try:
        name = printable_line(str(listed["data"][0]["id"]))
    except (KeyError, IndexError, TypeError):
        name = "A model"
    return f"{name} at {server_url(server[0])}. /help lists what can be typed, Ctrl-D leaves."


@dataclass(slots=True)
class Talk:
    """Messages so far, and what is typed to go on with them."""

    server: Server
    sampling: JsonObject
    system: str | None = None
    is_shown: bool = False
    """Whether somebody sits at a terminal."""
    messages: list[dict[str, str]] = field(default_factory=list)
    """All but the system's, questions and answers in turn."""
    question: str | None = None
    """The last one, whether it was answered or not."""

    def take(self, typed: str) -> bool:
        """Answer a message or obey a word; False: it is time to leave. Raises UserError."""
        word = SLASH_WORD.fullmatch(typed)
        if word is None:
            quoted = typed.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
            self._ask(quoted if typed.startswith(QUOTES) else typed)
            return True
        name, rest = ALSO.get(word[1], word[1]), (word[2] or "").strip()
        if name in LEAVING:
            return False
        order = self._orders().get(name)
        if order is None:
            raise UserError(
                f"There is no /{name}: /help lists what there is. A message that begins so goes "
                f"between {QUOTES} and {QUOTES}."
            )
        order(rest)
        return True

    def _orders(self) -> dict[str, Callable[[str], None]]:
        return {
            "help": lambda rest: click.echo(HELP),
            "new": lambda rest: self._start_over(),
            "retry": lambda rest: self._retry(),
            "system": self._set_system,
            "save": self._save,
        }

    def _start_over(self) -> None:
        self.messages, self.question = [], None

    def _set_system(self, text: str) -> None:
        self.system = text or None
        self._start_over()

    def _retry(self) -> None:
        if self.question is None:
            raise UserError("Nothing was asked yet: type a question first.")
        if self.messages and self.messages[-2]["content"] == self.question:
            del self.messages[-2:]
        self._ask(self.question)

    def _ask(self, question: str) -> None:
        self.question = question
        asked = [*self.messages, {"role": "user", "content": question}]
        answer = self._answer({"messages": [*self._opening(), *asked], **self.sampling})
        self.messages = [*asked, {"role": "assistant", "content": answer}]

    def _opening(self) -> list[dict[str, str]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def _answer(self, body: JsonObject) -> str:
        """Stream one answer; Ctrl-C keeps what has come until then."""
        pieces, rate = list[str](), AnswerRate()
        if self.is_shown:
            body = body | {"stream_options": {"include_usage": True}}
        wrap = WordWrap(shutil.get_terminal_size().columns)
        shown = (lambda text: write(wrap.wrapped(text))) if self.is_shown else write
        stream = print_stream(
            self.server,
            "/v1/chat/completions",
            body,
            lambda event: joined_deltas(event, "content"),
            pieces=pieces,
            write=shown,
            seen=rate.see,
        )
        try:
            asyncio.run(stream)
        except KeyboardInterrupt:
            write(f"{wrap.rest()} [stopped]")
        finally:
            write(wrap.rest())
            if pieces:
                click.echo()
        if self.is_shown and (line := rate.line()):
            click.secho(line, dim=True, err=True)
        return "".join(pieces)

    def _save(self, name: str) -> None:
        if not name:
            raise UserError("Give a file: /save FILE.")
        path, messages = Path(name).expanduser(), [*self._opening(), *self.messages]
        text = "\n\n".join(f"{one['role'].capitalize()}: {one['content']}" for one in messages)
        if path.suffix == ".json":
            text = json.dumps({"messages": messages}, indent=2, ensure_ascii=False)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            raise UserError(f"{name} cannot be written ({error.strerror}): give another.") from None
        click.echo(f"{len(messages)} messages are in {path}.")


@dataclass(slots=True)
class AnswerRate:
    """How quickly an answer came."""

    _asked_s: float = field(default_factory=time.monotonic)
    _first_s: float | None = None
    _last_s: float = 0.0
    _tokens: int = 0

    def see(self, event: JsonObject) -> None:
        """Note one event of the stream."""
        self._last_s = time.monotonic()
        if self._first_s is None and event.get("choices"):
            self._first_s = self._last_s
        if usage := event.get("usage"):
            self._tokens = usage.get("completion_tokens", 0)

    def line(self) -> str:
        """Tokens and their rate; empty where the answer was stopped before its end."""
        if self._first_s is None or not self._tokens:
            return ""
        first, took = self._first_s - self._asked_s, self._last_s - self._first_s
        is_timed = self._tokens > 1 and took > 0
        rate = f", {(self._tokens - 1) / took:.1f} tokens/s" if is_timed else ""
        return f"{self._tokens} tokens{rate}, the first after {first:.1f} s"


def _messages(interactive: bool) -> Iterator[str]:
    """What is typed, line by line, or several between quotes, until the end of the input."""
    lines = _typed_lines() if interactive else iter(sys.stdin)
    for line in lines:
        message = line.strip()
        if message.startswith(QUOTES) and (message == QUOTES or not message.endswith(QUOTES)):
            message = "\n".join([message, *_until_quotes(lines)])
        if message:
            yield message


def _until_quotes(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line.rstrip("\n")
        if line.rstrip().endswith(QUOTES):
            return


def _typed_lines() -> Iterator[str]:
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() line editing and history)
    while True:
        try:
            yield input("> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):  # pressed twice
                click.echo("\n/exit or Ctrl-D leaves.")
