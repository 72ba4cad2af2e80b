"""`molink sim`: what a ring would do, without one.

`molink` finds the group by the entry point `molink.commands`; it never imports this package.
"""

import click

from molink.terminal.command_line import SentenceGroup, with_examples
from molink_sim.cli.cache import cache
from molink_sim.cli.cell import cell
from molink_sim.cli.compare import compare
from molink_sim.cli.examples import EXAMPLES
from molink_sim.cli.micro_batches import micro_batches
from molink_sim.cli.paper import paper
from molink_sim.cli.plan import plan
from molink_sim.cli.pools import pools
from molink_sim.cli.replay import replay
from molink_sim.cli.run import run
from molink_sim.cli.sessions import sessions
from molink_sim.cli.swarm import swarm

__all__ = ["main"]


@click.group(
    name="sim", cls=SentenceGroup, context_settings={"help_option_names": ["-h", "--help"]}
)
def main() -> None:
    """Simulate rings with the scheduler that ships: runs, curves, tables, forecasts, the truth."""


COMMANDS = (
    *(cache, cell, compare, micro_batches, paper, plan, pools, replay, run, sessions, swarm),
)

for command in COMMANDS:
    main.add_command(with_examples(command, f"sim {command.name}", EXAMPLES))
