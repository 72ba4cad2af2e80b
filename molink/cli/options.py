"""Options that more than one subcommand takes."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from molink.config.parsers import AUTO, NONE, REASONING_PARSERS, TOOL_PARSERS
from molink.errors import UserError
from molink.terminal.command_line import shown_option
from molink_scheduler.codec_choice import CODEC_CHOICES
from molink_scheduler.head.settings import REPLAY_LOG_BYTES, RingTerms
from molink_scheduler.routing.ring_choice import Routing
from molink_scheduler.units import GB, bytes_of_gb
from molink_scheduler.waiting_line import WAIT_S

Command = Callable[..., Any]
Option = Callable[[Command], Command]


def auto_or_count(option: str, value: str) -> int | None:
    """None for `auto`, else the number. Raises UserError for anything else."""
    if value == "auto":
        return None
    try:
        return int(value)
    except ValueError:
        raise UserError(f"{option} takes auto or a whole number, got {value!r}.") from None


def _bytes_of(option: str, size_gb: float) -> int:
    """Bytes of a size in GB. Raises UserError for one that is no number."""
    try:
        return bytes_of_gb(size_gb)
    except (ValueError, OverflowError):
        raise UserError(f"{option} takes a size in GB, got {size_gb:g}.") from None


def _size(name: str, parameter: str, default: int, purpose: str) -> Option:
    """An option that takes GB and gives bytes."""
    return shown_option(
        name,
        parameter,
        type=float,
        default=default / GB,
        metavar="X",
        callback=lambda context, option, value: _bytes_of(name, value),
        help=purpose,
    )


def _auto_or_count(name: str, parameter: str, metavar: str, purpose: str) -> Option:
    """An option that takes `auto` or a number."""
    return shown_option(
        name,
        parameter,
        default="auto",
        metavar=metavar,
        callback=lambda context, option, value: auto_or_count(name, value),
        help=purpose,
    )


kv_option = shown_option(
    "--kv",
    "kv_dtype",
    type=click.Choice(["auto", "int8"]),
    default="auto",
    help="Format of the KV cache: as --dtype, or int8, which holds twice the tokens of 16 bits.",
)

_RING_OPTIONS = (
    click.option(
        "--nodes",
        type=int,
        help="Stage processes to start; without it as many as --layers names, else 3.",
    ),
    shown_option(
        "--standby",
        "standbys",
        type=int,
        default=0,
        metavar="K",
        help="Nodes beside those that serve which hold layers of theirs, and take the place of one "
        "that is lost.",
    ),
    click.option(
        "--no-shadow",
        "shadow",
        flag_value=False,
        default=True,
        help="Have standbys hold layers only, and no KV: their neighbours upload nothing for them.",
    ),
    click.option(
        "--layers",
        metavar="A-B,B-C,...",
        help="Layers of each stage, ends not included; without it they are split evenly.",
    ),
    shown_option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        help="Number format of weights and activations.",
    ),
    shown_option("--device", default="auto", help="auto, cpu or cuda:N, for every stage."),
    shown_option("--threads", default=1, help="Compute threads of each stage."),
    click.option(
        "--max-model-len",
        "model_len_max",
        type=int,
        help="Most tokens of prompt and answer together; without it the model's own length.",
    ),
    click.option(
        "--kv-tokens",
        type=int,
        help="Tokens that each stage's KV cache holds; without it as many as memory allows.",
    ),
    kv_option,
    _auto_or_count(
        "--micro-batches", "micro_batch_count", "auto|K", "Decode groups that circle the ring."
    ),
    click.option(
        "--upload-mbps",
        type=float,
        metavar="X",
        help="Cap on everything that each node uploads, activations included.",
    ),
    shown_option(
        "--wire",
        "codec",
        type=click.Choice(CODEC_CHOICES),
        default="raw",
        help="How activations are packed; auto takes int8 where a check at load lets it, "
        "else lossless where that is quicker than raw.",
    ),
    _auto_or_count(
        "--span-tokens", "span_tokens", "auto|T", "Prompt tokens computed and sent at a time."
    ),
    _size(
        "--replay-log-gb",
        "replay_log_bytes",
        REPLAY_LOG_BYTES,
        "Memory of each stage for rows that it has sent, from which a lost neighbour is "
        "replaced; requests beyond it are computed anew.",
    ),
    _size(
        "--cache-ram-gb",
        "cache_ram_bytes",
        0,
        "Memory of the PC, all stages together, for cached KV that a device has no room for.",
    ),
    _size(
        "--cache-disk-gb",
        "cache_disk_bytes",
        0,
        "Disk for what that memory has no room for, encrypted; it is gone with the stages.",
    ),
    click.option(
        "--no-prefix-cache",
        is_flag=True,
        help="Compute every prompt whole, also where one that begins alike was computed before.",
    ),
)


_ACCESS_OPTIONS = (
    click.option(
        "--no-keys",
        is_flag=True,
        help="Let everybody who reaches the API ask without a key; orders need one all the same.",
    ),
    click.option(
        "--api-tls",
        is_flag=True,
        help="HTTPS for the API, with a certificate that is made for it, or one of yours.",
    ),
    click.option(
        "--api-tls-cert",
        default="",
        metavar="FILE",
        help="PEM: the certificate that users are shown, and those of its authorities.",
    ),
    click.option("--api-tls-key", default="", metavar="FILE", help="PEM: its private key."),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="Name by which the API is reached without a key; may be given again.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        metavar="ORIGIN",
        help="Origin whose web pages may use the API, as https://chat.example, or * for any page "
        "that sends a key; may be given again.",
    ),
    click.option(
        "--strict",
        is_flag=True,
        help="Refuse requests with fields that would be ignored, instead of naming them in the "
        "header X-MoLink-Ignored.",
    ),
    click.option(
        "--shared-cache",
        is_flag=True,
        help="Let users of different keys share what was computed for prompts that begin alike; "
        "from how soon an answer comes they can then tell what others have asked.",
    ),
    shown_option(
        "--queue-s",
        type=float,
        default=WAIT_S,
        metavar="X",
        help="Refuse requests (429) that are forecast to wait longer for their first token.",
    ),
    shown_option(
        "--routing",
        type=click.Choice([one.value for one in Routing]),
        default=Routing.MOLINK.value,
        help="Which ring serves a request: molink takes the one that is forecast to begin its "
        "answer soonest, cache the one that has computed most of its prompt before.",
    ),
    click.option(
        "--ttft-target-s",
        type=float,
        metavar="X",
        help="Refuse requests (429) that are forecast to get their first token later.",
    ),
    click.option(
        "--tpot-target-ms",
        type=float,
        metavar="X",
        help="Refuse requests (429) that are forecast to get further tokens more slowly.",
    ),
    click.option(
        "--served-model-name",
        "served_model_names",
        multiple=True,
        metavar="NAME",
        help="What users call the model; may be given again: the first stands in answers, "
        "without any the model's own name.",
    ),
    shown_option(
        "--generation-config",
        type=click.Choice([AUTO, NONE]),
        default=AUTO,
        help="Sampling settings of a request that gives none: auto takes those that the model's "
        "makers publish in generation_config.json.",
    ),
)

_CHAT_OPTIONS = (
    shown_option(
        "--tool-parser",
        type=click.Choice(TOOL_PARSERS),
        default=AUTO,
        help="How the model writes calls of tools; auto finds it from the chat template.",
    ),
    shown_option(
        "--reasoning-parser",
        type=click.Choice(REASONING_PARSERS),
        default=AUTO,
        help="How it writes what it thinks before it answers.",
    ),
)

key_option = click.option(
    "--key",
    envvar="MOLINK_API_KEY",
    metavar="KEY",
    help="Of the server, if it wants one; better in the environment, as MOLINK_API_KEY.",
)


def access_options(command: Command) -> Command:
    """Add the options about who may use the API."""
    return _with_options(command, _ACCESS_OPTIONS)


def chat_options(command: Command) -> Command:
    """Add the options about how answers are read."""
    return _with_options(command, _CHAT_OPTIONS)


def _with_options(command: Command, options: Sequence[Option]) -> Command:
    """In this order in its help."""
    for option in reversed(options):
        command = option(command)
    return command


TERMS = ("micro_batch_count", "span_tokens", "replay_log_bytes")


def _with_terms(command: Command) -> Command:
    """Give the command one `ring` in place of the options of TERMS."""

    @wraps(command)
    def run(**options: Any) -> Any:
        terms = {name: options.pop(name) for name in TERMS}
        try:
            ring = RingTerms(
                **terms,
                prefix_cache=not options.pop("no_prefix_cache"),
                fifo_prompts=options.get("ttft_target_s") is not None,
            )
        except ValueError as error:
            raise UserError(f"--{error}.") from None
        return command(ring=ring, **options)

    return run


def ring_options(command: Command) -> Command:
    """Add the options that describe a local ring."""
    return _with_options(_with_terms(command), _RING_OPTIONS)


def some_ring_options(*names: str) -> Option:
    """Of these options those with the given parameter names, with all that make a `ring`."""

    def add(command: Command) -> Command:
        some = [option for option in _RING_OPTIONS if _name_of(option) in names]
        return _with_options(_with_terms(command), some)

    return add


def _name_of(option: Option) -> str:
    """The name of the parameter that an option becomes."""

    def bare() -> None:
        """Takes the option and nothing else."""

    (parameter,) = getattr(option(bare), "__click_params__")  # noqa: B009 - click's own mark
    return str(parameter.name)
