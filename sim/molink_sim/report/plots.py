"""Pictures in one style: panels, axes, legends, and always the same colour for the same system.

matplotlib comes with the `bench` extra and is loaded when a picture is drawn.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from molink.errors import UserError

COLOURS = {"molink": "#0b6e4f", "fifo": "#c8553d", "fair": "#3d5a98"}
MORE_COLOURS = ("#7d5ba6", "#d9a441", "#4f9da6", "#888888", "#222222")
SYSTEM_COLOURS = {
    "molink": COLOURS["molink"],
    "paper": "#d9a441",
    "helix": COLOURS["fifo"],
    "vllm": COLOURS["fair"],
}

DECODE_COLOUR, PREFILL_COLOUR = COLOURS["molink"], "#e0a458"

SHADES = "viridis"
SHADE_LIGHTEST = 0.85
"""The rest of the map is too pale on white."""

PANEL_INCHES = (5.2, 3.4)
DOTS_PER_INCH = 130
TICK_DIGITS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
TICKS_MAX = 14


def colour(name: str, number: int) -> str:
    """The colour of a condition: policies always look the same, others by their number."""
    return COLOURS.get(name, MORE_COLOURS[number % len(MORE_COLOURS)])


def colours(names: Sequence[Any]) -> dict[Any, Any]:
    """Colours of the names: systems have their own, numbers are shades of one scale."""
    if len(names) > 1 and all(isinstance(name, int | float) for name in names):
        return _shades(sorted(names))
    return {
        name: SYSTEM_COLOURS.get(str(name)) or colour(str(name), number)
        for number, name in enumerate(names)
    }


def _shades(numbers: Sequence[float]) -> dict[Any, Any]:
    import matplotlib

    shade = matplotlib.colormaps[SHADES]
    step = SHADE_LIGHTEST / (len(numbers) - 1)
    return {number: shade(place * step) for place, number in enumerate(numbers)}


def legend(panel: Any, title: str | None = None) -> None:
    """Put the legend to the right of the last panel, where it hides no line."""
    found = panel.legend(
        frameon=False, fontsize=8, title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    found.get_title().set_fontsize(8)


@contextmanager
def picture(path: Path, panels: int, title: str, *, rows: int = 1) -> Iterator[Sequence[Any]]:
    """Axes side by side, written to `path` afterwards; of several rows the upper ones first."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("pictures need matplotlib: pip install 'molink[bench]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    (width, height), columns = PANEL_INCHES, panels // rows
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows),
        layout="constrained",
        squeeze=False,
    )
    axes = list(grid.flat)
    figure.suptitle(title, fontsize=10)
    for one in axes:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
    yield axes
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)


def cumulative(
    axes: Any, values: Sequence[float], label: str, colour: str, line: str = "-"
) -> None:
    """The share of values up to each value; `line` is solid unless it says otherwise."""
    ordered = sorted(values)
    shares = [(number + 1) / len(ordered) for number in range(len(ordered))]
    axes.plot(ordered, shares, line, label=label, color=colour, drawstyle="steps-post")


def logarithmic(axes: Any, which: str) -> None:
    """Make the axis `x` or `y` logarithmic, with numbers as people write them."""
    axes.set(**{f"{which}scale": "log"})
    axis, limits = getattr(axes, f"{which}axis"), getattr(axes, f"get_{which}lim")()
    axis.set_ticks(_ticks(*limits))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")
    axes.set(**{f"{which}lim": limits})


def _ticks(low: float, high: float) -> list[float]:
    """Ticks, as many as can be read."""
    found: list[float] = []
    for digits in TICK_DIGITS:
        ticks = [digit * 10.0**power for power in range(-6, 7) for digit in digits]
        found = [tick for tick in ticks if low <= tick <= high]
        if len(found) <= TICKS_MAX:
            break
    return found
