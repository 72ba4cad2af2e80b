"""Options of commands: of settings, made from their groups, and what many commands take."""

from collections.abc import Callable
from dataclasses import MISSING, Field, replace
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import click

from molink.config.setting import AUTO_OR_COUNT, Setting, settings_in
from molink.errors import UserError

Command = Callable[..., Any]
Option = Callable[[Command], Command]

OF_A_RING = (
    *("nodes", "standbys", "shadow", "layers", "dtype", "device", "threads", "model_len_max"),
    *(
        "kv_tokens",
        "kv_host_tokens",
        "attention_device",
        "kv_dtype",
        "micro_batch_count",
        "upload_mbps",
        "codec",
        "span_tokens",
    ),
    *("replay_log_bytes", "cache_ram_bytes", "cache_disk_bytes", "prefix_cache"),
    *("drafter", "draft_width_max"),
)
"""Settings that describe a ring, in the order of help, which has them last: they stand in several
groups."""

DEFAULT_URL = "http://127.0.0.1:8000"

URL_VARIABLE = "MOLINK_URL"
"""Environment variable with the server that commands ask."""

url_option = click.option(
    "--url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    help=f"Address of the server; it may stand in the environment, as {URL_VARIABLE}.",
)

key_option = click.option(
    "--key",
    envvar="MOLINK_API_KEY",
    metavar="KEY",
    help="Key for the server, if it wants one; better in the environment, as MOLINK_API_KEY.",
)


def model_argument(*, required: bool = True) -> Option:
    """Adder of MODEL, which may also be given as other programs take it, by -m or --model."""

    def add(command: Command) -> Command:
        @wraps(command)
        def run(model: str | None, by_option: str | None, **options: Any) -> Any:
            if model is not None and by_option is not None:
                raise UserError(
                    "MODEL is given twice, as an argument and by --model: once will do."
                )
            chosen = by_option if model is None else model
            if chosen is None and required:
                raise click.UsageError("Missing argument 'MODEL'.", click.get_current_context())
            return command(model=chosen, **options)

        named = click.option(
            "-m", "--model", "by_option", metavar="MODEL", help="MODEL, given as an option."
        )(run)
        shown = "MODEL" if required else "[MODEL]"
        return click.argument("model", required=False, metavar=shown)(named)

    return add


def settings_options(group: type) -> Option:
    """Adder of an option for each setting of a group."""
    found = sorted(settings_in(group), key=lambda found: _place(found[0].name))

    def add(command: Command) -> Command:
        for one, setting in reversed(found):
            command = _option(one, setting, one.default)(command)
        return command

    return add


def setting_option(group: type, name: str, *, default: Any = MISSING, **how: Any) -> Option:
    """The option of one setting, for a command with another default or another text for it."""
    (found,) = [(one, setting) for one, setting in settings_in(group) if one.name == name]
    one, setting = found
    return _option(one, replace(setting, **how), one.default if default is MISSING else default)


def auto_or_count(option: str, typed: str) -> int | None:
    """None for `auto`, else the number. Raises UserError for anything else."""
    count: int | None = Setting(option, "", "", typed=AUTO_OR_COUNT).read(typed)
    return count


def _place(name: str) -> int:
    return OF_A_RING.index(name) if name in OF_A_RING else -1


def _option(one: "Field[Any]", setting: Setting, default: Any) -> Option:
    named: dict[str, Any] = {
        "help": setting.help,
        "metavar": setting.metavar or None,
        "envvar": setting.envvar,
    }
    if one.type is bool:
        named |= {"flag_value": False, "default": True} if default else {"is_flag": True}
        return click.option(setting.option, one.name, **named)
    if default == ():
        return click.option(setting.option, one.name, multiple=True, **named)
    shown = setting.typed.written(None if default is MISSING else default)
    return click.option(
        setting.option,
        one.name,
        type=_type(one, setting),
        default=shown,
        show_default=shown not in (None, "") and not setting.envvar,
        callback=lambda context, option, typed: None if typed is None else setting.read(typed),
        **named,
    )


def _type(one: "Field[Any]", setting: Setting) -> Any:
    """What click makes of what is typed."""
    if setting.choices:
        return click.Choice(setting.choices)
    kind = setting.typed.kind or one.type
    if isinstance(kind, UnionType):
        (kind,) = [member for member in get_args(kind) if member is not type(None)]
    return click.Path(path_type=Path) if kind is Path else kind
