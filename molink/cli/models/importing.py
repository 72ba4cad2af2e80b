"""`molink import`: make the checkpoint that nodes fetch, from a GGUF file or in fewer bits."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.cli.extras import check_extra
from molink.errors import UserError
from molink.models import DEMO_MODEL_DIR
from molink.terminal.amounts import bytes_text
from molink.terminal.command_line import quiet_option
from molink.terminal.tables import json_option

if TYPE_CHECKING:
    from molink.importing.plain_model import WeightBits

GROUP = 128

WEIGHTS = ("int4", "int8")


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The new checkpoint; without it beside SOURCE, named after it.",
)
@click.option(
    "--weights",
    type=click.Choice(WEIGHTS),
    help="How to round the weights of a folder; those of a GGUF file stay as they are.",
)
@click.option(
    "--group",
    type=click.Choice(["32", "64", "128"]),
    help="Inputs that share a scale in int4; fewer are more exact and take more memory. "
    "Without it 128.",
)
@click.option(
    "--config",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder of the original model, whose config and tokenizer are taken; without it they are "
    "made from what the GGUF file says.",
)
@quiet_option
@json_option
def import_(
    source: Path,
    out: Path | None,
    weights: "WeightBits | None",
    group: str | None,
    config: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Make a checkpoint to serve from SOURCE: a GGUF file, a model's folder, or `demo`.

    A GGUF file keeps its weights bit for bit where there are kernels for them, else they become
    Q8_0; those of a folder are rounded as --weights says. The new folder is what `molink serve` and
    `molink up` take as MODEL, and nodes fetch their layers of it.
    """
    from molink.importing.gguf.file import recoded_line
    from molink.importing.planned import gguf_of

    source = gguf_of(source) if weights is None else source
    folder = out or _default_folder(source, weights)
    if source == Path("demo") and not source.exists():
        source = DEMO_MODEL_DIR
    _check(source, weights, group, config)
    _check_place(folder)
    size = _imported(source, folder, weights, int(group or GROUP), config, quiet=quiet)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "weight_bytes": size}))
    elif not quiet:
        click.echo(f"{folder} holds {bytes_text(size)} of weights: molink serve {folder}")
        if weights is None and (line := recoded_line(source)):
            click.echo(line)


def _check(
    source: Path, weights: "WeightBits | None", group: str | None, config: Path | None
) -> None:
    if source.is_dir():
        if weights is None:
            raise UserError(
                f"{source} is a folder: say how to round it, with --weights int4 or --weights int8."
            )
        if config is not None:
            raise UserError("--config is for GGUF files: a folder has its own config.")
    elif not source.is_file():
        raise UserError(
            f"There is no file and no folder {source}: give a GGUF file or a model's folder on "
            "this disk."
        )
    elif weights is not None:
        raise UserError("--weights rounds a folder with plain weights, not a GGUF file.")
    else:
        check_extra("import")
    if group is not None and weights != "int4":
        raise UserError("--group is for --weights int4.")


def _check_place(folder: Path) -> None:
    """Before torch is loaded, which takes seconds."""
    from molink.importing.checkpoint_folder import check_place

    check_place(folder)


def _default_folder(source: Path, weights: "WeightBits | None") -> Path:
    from molink.checkpoint.gguf.split_files import PART_NAME

    source = source.absolute()
    if weights is not None:
        return source.with_name(f"{source.name}-{weights}")
    part = PART_NAME.fullmatch(source.name)
    return source.with_name(f"{part['stem'] if part else source.stem}-gguf")


def _imported(
    source: Path,
    folder: Path,
    weights: "WeightBits | None",
    group: int,
    config: Path | None,
    *,
    quiet: bool,
) -> int:
    from molink.terminal.progress import WorkProgress

    with WorkProgress(folder.name, unit="bytes", quiet=quiet) as bar:

        def progress(done: int, total: int) -> None:
            bar.expect(total)
            bar.reach(done)

        if weights is None:
            from molink.importing.gguf.file import import_gguf

            return import_gguf(source, folder, config, progress)
        from molink.importing.plain_model import import_plain

        return import_plain(source, folder, weights, group, progress)
