"""Extras of the distribution, each named after the command that needs it.

A volunteer's PC has none of them (`deploy/install.sh`), a coordinator's all (`--coordinator`).
"""

from importlib.util import find_spec

from molink.errors import UserError

PACKAGES = {"dashboard": "textual", "import": "gguf"}
"""Package of each extra that its command imports when it runs."""

SIMULATOR = "sim"
"""Extra that brings its whole command, as a distribution of its own."""


def check_extra(command: str) -> None:
    """Raise UserError where the extra of a command of ours is not installed."""
    if find_spec(PACKAGES[command]) is None:
        raise missing_extra(command)


def missing_extra(command: str) -> UserError:
    """What a command without its extra ends with."""
    return UserError(
        f"The command {command} needs more packages: run `sh deploy/install.sh --coordinator`, or "
        f"`pip install 'molink[{command}]'`."
    )
