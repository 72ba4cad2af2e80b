"""Tables and pictures as one HTML file: no scripts, no fonts, nothing that must be loaded.

It can be mailed, opened from a disk and printed. It follows the reader's light or dark colours;
pictures are drawn once, on white, and turned dark by the browser with their hues kept.

`write_run_page` is the page of one run: what users felt, how busy everything was, some seconds of
it as bars.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from molink_sim.outcome import Outcome
from molink_sim.report.curves import plot_cdfs
from molink_sim.report.gantt import plot_gantt
from molink_sim.report.summary import summary
from molink_sim.report.tables import Table, busy_table, spread_table, totals

WINDOW_S = 2.0
"""Seconds of the timeline in the Gantt picture: about ten rounds of a home ring."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG file and what it shows, in one sentence."""

    path: Path
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a paragraph, then tables, then pictures."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d2125; --faint: #667079;
  --line: #d9dde1; --band: #f4f6f8; --mark: #0b6e4f; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #1a1a1a; --ink: #e4e6e8; --faint: #9aa3ab; --line: #3a3f44; --band: #232527;
    --mark: #5cc79f; }
  img { filter: invert(.9) hue-rotate(180deg); }
}
body { background: var(--paper); color: var(--ink); margin: 0 auto; max-width: 70rem;
  padding: 2rem 1.25rem 4rem; font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .5rem 0; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
a { color: var(--mark); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .925rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding-bottom: .25rem; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line); }
.words td, .words th { text-align: left; }
th:first-child, td:first-child { text-align: left; padding-left: .4rem; }
thead th { color: var(--faint); font-weight: 600; }
tbody tr:nth-child(even) { background: var(--band); }
figure { margin: 1.25rem 0; }
img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--faint); font-size: .9rem; margin-top: .4rem; }
@media (max-width: 50rem) { img { max-width: none; width: 56rem; } }
@media print { h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write the page; everything is escaped, pictures are read now and held inside."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        _contents(sections),
        *(_section(number, one) for number, one in enumerate(sections, start=1)),
        "</body></html>",
    ]
    path.write_text("\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def _contents(sections: Sequence[Section]) -> str:
    if len(sections) < 2:
        return ""
    items = (
        f'<li><a href="#s{number}">{escape(one.title)}</a></li>'
        for number, one in enumerate(sections, start=1)
    )
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _section(number: int, section: Section) -> str:
    parts = [
        f'<section><h2 id="s{number}">{escape(section.title)}</h2>',
        _paragraph(section.text),
        *(_table(one) for one in section.tables),
        *(_picture(one) for one in section.pictures),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _table(table: Table) -> str:
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    kind = "" if table.numbers else ' class="words"'
    head = _cells(table.head, 'th scope="col"')
    rows = "\n".join(f"<tr>{_cells(row, 'td')}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table{kind}>{caption}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(texts: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag.split()[0]}>" for text in texts)


def _picture(picture: Picture) -> str:
    data, caption = b64encode(picture.path.read_bytes()).decode(), escape(picture.caption)
    return (
        f'<figure><div class="wide"><img alt="{caption}" src="data:image/png;base64,{data}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def write_run_page(
    path: Path,
    outcome: Outcome,
    *,
    title: str,
    settings: Mapping[str, object],
) -> None:
    """Write the page of a run; with a timeline, some seconds in its middle are drawn.

    Raises:
        UserError: without matplotlib.
    """
    found = summary(outcome)
    rows = [[name, str(one)] for name, one in settings.items()]
    set_up = Table("", ["setting", "value"], rows, numbers=False)
    with TemporaryDirectory() as folder:
        times = Path(folder, "times.png")
        plot_cdfs(times, {"": outcome})
        sections = [
            Section(
                "What users felt",
                totals(found),
                [spread_table(found, "")],
                [Picture(times, "The share of requests that had to wait no longer than so.")],
            ),
            Section("How busy it was", "", [busy_table(found, "")]),
            *_gantt(Path(folder, "gantt.png"), outcome),
            Section("What was run", "", [set_up]),
        ]
        write_page(path, title, sections)


def _gantt(path: Path, outcome: Outcome) -> list[Section]:
    if not outcome.timeline:
        return []
    start_s, end_s = _middle(outcome)
    plot_gantt(path, outcome.timeline, start_s, end_s)
    caption = f"Stages and links from {start_s:g} s to {end_s:g} s, head to tail."
    return [Section("Some seconds of it", pictures=[Picture(path, caption)])]


def _middle(outcome: Outcome) -> tuple[float, float]:
    """Around the bar that is in the middle of the timeline, so that something is seen."""
    bar = outcome.timeline[len(outcome.timeline) // 2]
    start_s = max(0.0, round(bar.start_s - WINDOW_S / 2, 1))
    return start_s, start_s + WINDOW_S
