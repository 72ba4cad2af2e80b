"""`molink`: one command, one subcommand for each thing that a person does.

What MoLink foresees ends with one sentence on standard error and exit code 2, what Ctrl-C cuts
short with 130; a traceback means a bug of ours. Names that others have for things get a sentence.
A subcommand's module is imported when the subcommand is asked for, and imports what it needs when
it runs, so that each starts quickly.

Packages that stand on this one (the agent, the simulator) bring commands of their own: they name
them in the entry point group `molink.commands`.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from keyword import iskeyword
from typing import Any

import click

from molink.cli.extras import SIMULATOR, missing_extra
from molink.cli.help.examples import EXAMPLES
from molink.cli.help.foreign_names import SAME_WORDS, foreign_option, foreign_word
from molink.errors import MolinkError
from molink.printable import PrintableFormatter, printable
from molink.terminal.command_line import EXIT_STOPPED, SentenceGroup, with_examples
from molink.terminal.value_names import name_values

EXIT_USER_ERROR = 2

COMMANDS_GROUP = "molink.commands"

TYPED = "molink.typed"
"""Where a context keeps the words of the command line."""

MODULES = {
    "molink.cli.cache": ("cache",),
    "molink.cli.cell": ("cell",),
    "molink.cli.client.bench": ("bench",),
    "molink.cli.client.chat": ("chat",),
    "molink.cli.client.generate": ("generate",),
    "molink.cli.client.status": ("status",),
    "molink.cli.dashboard": ("dashboard",),
    "molink.cli.demo": ("demo",),
    "molink.cli.models.importing": ("import",),
    "molink.cli.keys": ("key",),
    "molink.cli.members": ("invite", "node"),
    "molink.cli.models.catalogue": ("models",),
    "molink.cli.models.plan": ("plan",),
    "molink.cli.models.pull": ("pull",),
    "molink.cli.relay": ("relay",),
    "molink.cli.serve": ("serve",),
    "molink.cli.up": ("up",),
    "molink.cli.upkeep.backup": ("backup", "restore"),
    "molink.cli.upkeep.service": ("service", "logs"),
    "molink.cli.upgrade": ("upgrade",),
}
"""Where our own commands are; each has its own name there, `import` one more underscore."""

OWN = {
    name: EntryPoint(name, f"{module}:{name}{'_' * iskeyword(name)}", COMMANDS_GROUP)
    for module, names in MODULES.items()
    for name in names
}


class MolinkGroup(SentenceGroup):
    """Group of our own commands and those of other packages, each imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order of the alphabet."""
        return sorted({*OWN, *_brought()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name. Raises UserError for the simulator's where it is missing."""
        point = OWN.get(cmd_name) or _brought().get(cmd_name)
        if point is None and cmd_name == SIMULATOR:
            raise missing_extra(cmd_name)
        if point is None:
            return None
        command = point.load()
        assert isinstance(command, click.Command), f"{cmd_name} is no command"
        name_values(command)
        return with_examples(command, cmd_name, EXAMPLES)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word, which may be another program's for the same."""
        name, *rest = args
        return super().resolve_command(ctx, [SAME_WORDS.get(name, name), *rest])

    def unknown_word(self, ctx: click.Context, name: str) -> str:
        """What is said of a word that is no command: a sentence, if another program has it."""
        return foreign_word(name) or super().unknown_word(ctx, name)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context of a command line, which keeps what was typed."""
        typed = list(args)
        with _foreign_options_explained(typed):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[TYPED] = typed
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an option that another program has gets its sentence."""
        with _foreign_options_explained(ctx.meta[TYPED]):
            return super().invoke(ctx)


@contextmanager
def _foreign_options_explained(typed: list[str]) -> Iterator[None]:
    """Say of an option that there is not what it is called here, if another program has it."""
    try:
        yield
    except click.NoSuchOption as error:
        sentence = foreign_option(error.option_name, typed)
        if sentence is None:
            raise
        raise click.UsageError(sentence, error.ctx) from None


def _brought() -> dict[str, EntryPoint]:
    """Commands that other packages bring, by name."""
    return {point.name: point for point in entry_points(group=COMMANDS_GROUP)}


def _show_version(context: click.Context) -> None:
    """Ask for it only now: in a checkout that starts git."""
    from molink.version import version

    click.echo(f"molink, version {version()}")
    context.exit()


@click.group(cls=MolinkGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda context, parameter, asked: _show_version(context) if asked else None,
    help="Show the version and exit.",
)
def cli() -> None:
    """Serve large language models over a ring of home PCs joined by slow links."""


def main() -> None:
    """Run the command line; exits with 0, with 2 after one sentence that says what to do, or with
    130 after Ctrl-C."""
    assert logging.lastResort is not None, "where warnings go without a handler of our own"
    logging.lastResort.setFormatter(PrintableFormatter())
    try:
        sys.exit(cli.main(prog_name="molink", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        print("molink: stopped", file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    except MolinkError as error:
        print(f"molink: {printable(str(error))}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
