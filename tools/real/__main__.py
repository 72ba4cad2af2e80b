"""Published models in MoLink beside the library: `python -m tools.real [--short]`, or `make real`.

Fetches the models of the manifest into ~/.cache/molink-real (or MOLINK_REAL_CACHE), serves each as
it is published and as made from it, and says which targets are missed. Ends with 1 where one is.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from molink.errors import UserError
from tools.real.exactness import FULL, SHORT, Row, compared_settings
from tools.real.llama_cpp_source import failed_checks, fetch_source
from tools.real.page import exactness_section, exactness_table, write_section
from tools.real.published import (
    PublishedModel,
    UnreachableError,
    cache_folder,
    fetch,
    read_manifest,
)

__all__ = ["main"]

SHORT_S = 240.0
"""After so long no further setting is begun, so that the whole ends within six minutes."""

MODELS = read_manifest()


@click.command()
@click.option("--short", is_flag=True, help="Few settings, prompts and tokens: minutes.")
@click.option(
    "--model",
    "names",
    multiple=True,
    type=click.Choice([model.name for model in MODELS]),
    help="Only this one; may be given again.",
)
@click.option("--page", is_flag=True, help="Write the figures into docs/benchmarks/real.md.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the figures as JSON.",
)
def main(short: bool, names: Sequence[str], page: bool, out: Path | None) -> None:
    """Compare published models in MoLink with the library."""
    if short and page:
        raise click.UsageError("a short run measures too little for the page: leave --short away")
    ends_s = time.monotonic() + SHORT_S if short else float("inf")
    try:
        wanted = [model for model in MODELS if not names or model.name in names]
        failed = [] if short else list(failed_checks(fetch_source(cache_folder())))
        missed = [_missed(one, short, page, out, ends_s) for one in wanted]
    except UnreachableError as error:
        if not short:
            raise click.ClickException(str(error)) from error
        click.echo(f"make real did not run: {error}")
        return
    except UserError as error:
        raise click.ClickException(str(error)) from error
    if any(missed) or failed:
        checks = f"; {', '.join(failed)} found faults" if failed else ""
        raise click.ClickException(f"{sum(missed)} settings miss their targets{checks}: see above")


def _missed(model: PublishedModel, short: bool, page: bool, out: Path | None, ends_s: float) -> int:
    """Compare one model in all its settings; how many miss their targets."""
    click.echo(f"{model.title} ({model.licence})")
    folder = cache_folder()
    gguf = fetch(model, folder)
    work = folder / f"{model.name}-made"
    rows = compared_settings(
        gguf,
        work,
        SHORT if short else FULL,
        lambda line: click.echo(f"  {line}", err=True),
        ends_s,
        model.int4_loss_ratio_max,
    )
    click.echo(exactness_table(rows))
    if out is not None:
        _write_json(out, model, rows)
    if page:
        write_section(model.name, exactness_section(model.title, model.licence, rows))
    return sum(bool(row.misses()) for row in rows)


def _write_json(out: Path, model: PublishedModel, rows: Sequence[Row]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    found = [{**asdict(row), "misses": row.misses()} for row in rows]
    (out / f"real-{model.name}.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
