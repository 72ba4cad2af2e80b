"""`molink generate`, `chat` and `bench`: clients of a running server, here or anywhere.

They speak the public REST API and nothing else, so what they can do every API user can do. Answers
are written as they come, without what a terminal would obey, and each command ends with UserError
when the server cannot be reached or refuses.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molink.cli.options import key_option
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.printable import printable
from molink.terminal.command_line import quiet_option, shown_option
from molink.utf8 import utf8_text

if TYPE_CHECKING:
    from molink.bench.load import Settings
    from molink_scheduler.routing.admission import Targets

DEFAULT_URL = "http://127.0.0.1:8000"

PROMPT_BYTES_MAX = 32 * 2**20
"""Bytes read from standard input: as many as the server takes."""

STAGE_ENVIRONMENT = {
    "GOMP_SPINCOUNT": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
}
"""How a stage process runs torch, which reads it when it is imported."""

Command = Callable[..., Any]
Server = tuple[str, str | None]
"""Its URL, and a key if it wants one."""

url_option = shown_option("--url", default=DEFAULT_URL, help="Address of the server.")

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


@click.command()
@click.argument("prompt")
@url_option
@key_option
@sampling_options
def generate(prompt: str, url: str, key: str | None, **sampling: Any) -> None:
    """Continue PROMPT, streaming the text to standard output. With - it is read from standard
    input."""
    body = {"prompt": _read_prompt() if prompt == "-" else prompt, **_given(sampling)}
    asyncio.run(_print_stream((url, key), "/generate", body, lambda event: event["text"], []))
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


@click.command()
@url_option
@key_option
@click.option("--system", help="What the model is told about its role.")
@sampling_options
def chat(url: str, key: str | None, system: str | None, **sampling: Any) -> None:
    """Talk with the served model.

    /new starts over; /exit or Ctrl-D leaves; Ctrl-C stops the present answer. From a pipe, each
    line is a message.
    """
    chat_with((url, key), system=system, **sampling)


def chat_with(server: Server, *, system: str | None = None, **sampling: Any) -> None:
    """A conversation with a server on this process's terminal, until the user leaves."""
    opening = [] if system is None else [{"role": "system", "content": system}]
    conversation = list(opening)
    interactive = sys.stdin.isatty()
    for message in _messages(interactive):
        if message == "/new":
            conversation = list(opening)
            continue
        asked = [*conversation, {"role": "user", "content": message}]
        try:
            answer = _answer(server, {"messages": asked, **_given(sampling)})
        except UserError as error:
            if not interactive:
                raise
            click.echo(f"molink: {printable(str(error))}", err=True)
            continue
        conversation = [*asked, {"role": "assistant", "content": answer}]


def _messages(interactive: bool) -> Iterator[str]:
    """The user's messages, line by line, until /exit or the end of the input."""
    for line in _typed_lines() if interactive else sys.stdin:
        message = line.strip()
        if message == "/exit":
            return
        if message:
            yield message


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


def _answer(server: Server, body: JsonObject) -> str:
    """Stream one answer; Ctrl-C keeps what has come until then."""
    pieces: list[str] = []
    try:
        asyncio.run(_print_stream(server, "/v1/chat/completions", body, _delta_text, pieces))
    except KeyboardInterrupt:
        click.echo(" [stopped]", nl=False)
    finally:
        if pieces:
            click.echo()
    return "".join(pieces)


def _delta_text(event: JsonObject) -> str:
    return _joined_deltas(event, "content")


def _joined_deltas(event: JsonObject, name: str) -> str:
    deltas = (choice["delta"] for choice in event.get("choices", ()))
    return "".join(delta.get(name) or "" for delta in deltas)


async def _print_stream(
    server: Server,
    path: str,
    body: JsonObject,
    text_of: Callable[[JsonObject], str],
    pieces: list[str],
) -> None:
    """Write the text of an answer's events as they come, and keep it in `pieces`; what the model
    thinks goes to standard error."""
    from molink.client.api_client import ApiClient

    is_thinking = False
    async with ApiClient(*server) as client, aclosing(client.stream(path, body)) as events:
        async for event in events:
            if thought := _joined_deltas(event, "reasoning"):
                click.secho(printable(thought), dim=True, nl=False, err=True)
                is_thinking = True
            pieces.append(text_of(event))
            if is_thinking and pieces[-1]:
                click.echo(err=True)
                is_thinking = False
            click.echo(printable(pieces[-1]), nl=False)


def _given(options: Mapping[str, object]) -> dict[str, object]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value not in (None, ())}


_AT_LEAST_ONE = click.IntRange(min=1)
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("model", required=False)
@url_option
@key_option
@shown_option("--concurrency", type=_AT_LEAST_ONE, default=1, help="At once.")
@shown_option("--requests", type=_AT_LEAST_ONE, default=8, help="In all.")
@shown_option("--input-tokens", type=_AT_LEAST_ONE, default=32, help="In each prompt.")
@shown_option("--output-tokens", type=_AT_LEAST_ONE, default=64, help="In each answer.")
@click.option(
    "--trace",
    metavar="FILE|generated",
    help="Instead: lengths and arrival times of a trace, or of the mix that ships with MoLink.",
)
@click.option("--rate", type=_ABOVE_ZERO, help="Of the trace, in requests per second.")
@click.option("--duration-s", type=_ABOVE_ZERO, help="Of the trace; 60 s when it is generated.")
@click.option("--scale", type=_ABOVE_ZERO, help="Multiply the trace's lengths by this.")
@click.option(
    "--sessions",
    metavar="FILE",
    help="Instead: agents' sessions of a file, --concurrency at a time, turn after turn.",
)
@shown_option("--seed", default=0, help="Of the random prompts.")
@shown_option("--temperature", type=click.FloatRange(min=0), default=0.0, help="0: greedy.")
@shown_option(
    "--warmup",
    type=click.IntRange(min=0),
    default=1,
    help="Short requests for each concurrent one before the clock starts.",
)
@click.option("--ttft-target-s", type=float, help="Count answers with a first token so soon.")
@click.option("--tpot-target-ms", type=float, help="And with a mean of so many between tokens.")
@click.option("--tbt-target-ms", type=float, help="And with gaps within so many.")
@shown_option("--tbt-percentile", type=float, default=99.0, help="Percentile of each one's gaps.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report to this file too.",
)
@click.option(
    "--profile",
    "profile_file",
    metavar="OUT.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Instead: no server, but the step times of MODEL's stages on this machine.",
)
@quiet_option
def bench(
    json_file: Path | None,
    profile_file: Path | None,
    model: str | None,
    key: str | None,
    quiet: bool,
    **settings: Any,
) -> None:
    """Load a server with random prompts and measure it as its users do.

    With --profile: time the stages of MODEL, a directory or hub id, for the simulator.
    """
    from molink.bench.goodput import TARGETS, targets_of
    from molink.bench.load import refuse_beside_profile, settings_from

    source = click.get_current_context().get_parameter_source
    given = [name for name in settings if source(name) is click.core.ParameterSource.COMMANDLINE]
    if profile_file is not None:
        refuse_beside_profile(given + ["json"] * (json_file is not None))
        _write_profile(model, profile_file, quiet=quiet)
        return
    if model is not None:
        raise UserError(f"{model} is not needed: the server at --url says what it serves.")
    targets = targets_of({name: settings.pop(name) for name in TARGETS})
    load = settings_from(settings, given)
    if json_file is not None:
        _check_writable(json_file, "--json")
    _show(asyncio.run(_run_with_bar(load, targets, key, quiet=quiet)), json_file)


def _write_profile(model: str | None, path: Path, *, quiet: bool) -> None:
    """Time the stages of `model` as a stage process computes, with one thread."""
    if model is None:
        raise UserError("--profile needs a MODEL, a directory or hub id, after the options.")
    _check_writable(path, "--profile")
    os.environ |= STAGE_ENVIRONMENT | os.environ  # before torch is imported
    from molink.bench.stage_profile import STEPS_IN_ALL, write_profile
    from molink.terminal.progress import WorkProgress

    with WorkProgress("steps", STEPS_IN_ALL, quiet=quiet) as bar:
        write_profile(model, path, bar.advance)


async def _run_with_bar(
    settings: "Settings", targets: "Targets", key: str | None, *, quiet: bool
) -> dict[str, Any]:
    from molink.bench.load import run_load
    from molink.terminal.progress import WorkProgress

    with WorkProgress("requests", quiet=quiet) as bar:
        return await run_load(
            settings,
            key=key,
            done=lambda record: bar.advance(),
            planned=bar.expect,
            targets=targets,
        )


def _show(report: dict[str, Any], json_file: Path | None) -> None:
    from rich.console import Console

    from molink.bench.report import print_report

    print_report(report, Console())
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if report["finished"] == 0:
        raise UserError(f"no request finished: {report['first_error']}")


def _check_writable(path: Path, option: str) -> None:
    """Fail before the measurement, not after it."""
    try:
        path.touch()
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}): choose another {option}"
        ) from error
