"""`molink pull`: fetch a model's weights before they are served."""

import click

from molink.errors import UserError
from molink.terminal.command_line import quiet_option


@click.command()
@click.argument("model", metavar="HUB-ID")
@quiet_option
def pull(model: str, quiet: bool) -> None:
    """Fetch all weights of a model from the hub, so that `molink serve` begins at once.

    They lie in the hub's cache of this account, where `molink serve` and `molink up` find them.
    What is there already is not fetched again; a model that cannot be served is refused first.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from molink.checkpoint.checkpoint import open_checkpoint
    from molink.checkpoint.description import describe

    checkpoint = open_checkpoint(model)
    if checkpoint.hub_id is None:
        raise UserError(f"{model} is a folder on this disk: molink serve {model}")
    describe(checkpoint)  # Before gigabytes come.
    if quiet:
        disable_progress_bars()
    files = sorted(set(checkpoint.weight_map().values()))
    for number, file in enumerate(files, start=1):
        if not quiet:
            click.echo(f"{file}, {number} of {len(files)}", err=True)
        checkpoint.weight_file(file)
    click.echo(f"All weights of {model} are here: molink serve {model}")
