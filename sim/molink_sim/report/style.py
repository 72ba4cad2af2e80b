"""How systems look in every picture: always the same colour."""

from collections.abc import Sequence
from typing import Any

from molink_sim.report.plots import COLOURS, colour

__all__ = ["DECODE_COLOUR", "PREFILL_COLOUR", "colours", "legend"]

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


def colours(names: Sequence[Any]) -> dict[Any, Any]:
    """One for each name: systems have their own, numbers are shades of one scale."""
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
    """To the right of the last panel, where it hides no line."""
    found = panel.legend(
        frameon=False, fontsize=8, title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    found.get_title().set_fontsize(8)
