"""Writes docs/can-i-run.md by the command itself: `python -m tools.docs_site.can_i_run`."""

from pathlib import Path

from click.testing import CliRunner

from molink.cli.main import cli

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "can-i-run.md"

SETS = (
    ("Two RTX 3090", "2x 3090"),
    ("Three RTX 3060 with 12 GB", "3x 3060"),
    ("An RTX 4090, an RTX 3080 and a laptop", "4090, 3080, 4060 laptop"),
    ("One RTX 4060 laptop", "4060 laptop"),
)
ROWS = 16
"""Models of each set that are shown, those on top."""

INTRODUCTION = """\
# What can I run?

<!-- Made by `python -m tools.docs_site.can_i_run`; do not edit. -->

`molink models` lists models of 2025 and 2026, with sizes, context and licence. With `--for` it
says which of them your cards can run, each card in a PC of its own. The PCs have home lines of 40
Mbit/s up, 100 down and 30 ms (`--line` changes that):

    molink models --for "3090, 3060 12GB, 5070"
    molink models qwen --for "3x 3060" --line 20/50/40
    molink models --json

It knows the GeForce cards of the series 20 to 50, on desks and in laptops, by the names that
people use. For the PCs of a running cluster, as they were measured, ask its coordinator: `molink
models --for cluster --url http://HOST:8000`, or `GET /catalogue`. `molink plan NAME --nodes
nodes.toml` shows the plan of one model ([placement](placement.md)).

How to read it:

- *alone* is what one user gets, *each of 8* what each of eight users gets at once, in tokens per
  second. Four tokens are about three words, and about as fast as people read. *first after* is
  the wait for the first token of a prompt of 768 tokens.
- *format* is the most exact one in which eight users find room and one user alone gets 8
  tokens/s; where there is none, the fastest. `molink import --weights int4` makes 4 bits of the
  original model.
- *download* is what all PCs fetch together, *takes* the longest of their downloads.
- The largest model that is fast enough to read along stands first.
- No card was measured for this. Rates are calculated from each card's memory and arithmetic, as
  every plan is ([how near that is to the
  simulator](benchmarks/simulator.md#what-models-for-says)).
"""

FACTS = """\
## Where the facts are from

Each model's settings are those of its published config.json. Each entry names the copy that they
were taken from, with its date (`source` in `molink models --json`). Sizes are made of them,
as for any config. Memory, bandwidth and arithmetic of each card, with its source, stand in
`molink/hardware/cards.toml`. What is refused is so by the self-test ([models](models.md)).
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([INTRODUCTION, *(_section(*one) for one in SETS), FACTS])


def _section(title: str, cards: str) -> str:
    told = CliRunner().invoke(cli, ["models", "--for", cards], catch_exceptions=False).output
    sentence, *table = told.splitlines()
    rows = [line for line in table if not line.startswith("Not on these PCs")]
    more = len(rows) - 1 - ROWS
    lines = [f"## {title}", "", f'`molink models --for "{cards}"`: {sentence}', ""]
    lines += ["```text", *rows[: 1 + ROWS], "```", ""]
    if more > 0:
        lines += [f"And {more} smaller ones.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
