"""Names of options' values in help: the unit or the thing, instead of click's name of a type.

`--queue-s SECONDS` says what `--queue-s FLOAT` leaves to guess. The names follow from those of the
options, whose last word is the unit, so that one that is added has its name by itself.
"""

import click

BY_ENDING = {
    "-s": "SECONDS",
    "-ms": "MS",
    "-mbps": "MBPS",
    "-gb": "GB",
    "-tokens": "TOKENS",
    "-port": "PORT",
    "-percentile": "PERCENT",
    "-share": "SHARE",
}
"""Value by the last word of an option's name."""

BY_NAME = {
    "--attention-device": "DEVICE",
    "--device": "DEVICE",
    "--host": "ADDRESS",
    "--listen": "ADDRESS",
    "--max-model-len": "TOKENS",
    "--name": "NAME",
    "--port": "PORT",
    "--public-host": "NAME",
    "--url": "URL",
}
"""Value by an option's whole name."""

BY_TYPE: dict[type, str] = {
    type(click.INT): "N",
    click.IntRange: "N",
    type(click.FLOAT): "X",
    click.FloatRange: "X",
    click.Path: "PATH",
}
"""Value of what has no unit."""


def name_values(command: click.Command) -> None:
    """Name the values of all options of a command, and of all below it, that have no name."""
    for option in command.params:
        if isinstance(option, click.Option) and _takes_unnamed_value(option):
            option.metavar = _name_of(option)
    if isinstance(command, click.Group):
        for one in command.commands.values():
            name_values(one)


def _takes_unnamed_value(option: click.Option) -> bool:
    is_switch = option.is_flag or option.count
    return option.metavar is None and not is_switch and not isinstance(option.type, click.Choice)


def _name_of(option: click.Option) -> str | None:
    """None: as click names it."""
    name = option.opts[-1]
    if name in BY_NAME:
        return BY_NAME[name]
    endings = [ending for ending in BY_ENDING if name.endswith(ending)]
    if endings:
        return BY_ENDING[max(endings, key=len)]
    if isinstance(option.type, click.Path):
        return None if not option.type.dir_okay else BY_TYPE[click.Path]
    return BY_TYPE.get(type(option.type))
