"""`molink`: one command, one subcommand for each thing that a person does.

What MoLink foresees ends with one sentence on standard error and exit code 2; a traceback means a
bug of ours. Subcommands import what they need when they run, so that `--help` is quick.
"""

import sys

import click

from molink import __version__
from molink.cli.client import bench, chat, generate
from molink.cli.demo import demo
from molink.cli.serve import serve
from molink.errors import MolinkError

__all__ = ["cli", "main"]

EXIT_USER_ERROR = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="molink")
def cli() -> None:
    """Serve large language models over a ring of home PCs joined by slow links."""


for command in (serve, demo, generate, chat, bench):
    cli.add_command(command)


def main() -> None:
    """Run the command line; exits with 0, or 2 after one sentence that says what to do."""
    try:
        cli(prog_name="molink")
    except MolinkError as error:
        print(f"molink: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
