"""Gantt chart of computing and sending: stages and links as lanes, from head to tail.

This is the picture that shows why a number is what it is: a prefill that holds back a decode round
is a long bar before a short one, a link without overlap is a staircase.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink_sim.outcome import Activity
from molink_sim.report.plots import DECODE_COLOUR, PREFILL_COLOUR, picture

BARS_MAX = 20_000
LANES_MAX = 40
"""Lanes of a picture. More can be neither drawn in reasonable time nor told apart."""

LANE_INCHES = 0.34
MARGIN_INCHES = 1.1
WIDTH_INCHES = 13.0
BAR_HEIGHT = 0.72

EDGED_BARS_MAX = 100
"""Bars of a lane and kind that get white edges: these tell neighbours apart, but would hide bars of
a pixel's width."""

KINDS = {"decode": DECODE_COLOUR, "prefill": PREFILL_COLOUR}


def plot_gantt(
    path: Path, timeline: Sequence[Activity], start_s: float, end_s: float, *, title: str = ""
) -> None:
    """The lanes that did something between `start_s` and `end_s` of virtual time.

    Raises:
        UserError: without matplotlib, and for a window that is empty or holds too much to see.
    """
    shown = [one for one in timeline if one.end_s > start_s and one.start_s < end_s]
    lanes = sorted({one.lane for one in shown}, key=in_pipeline_order)
    _check(shown, lanes, start_s, end_s)
    with picture(path, 1, title) as (axes,):
        axes.figure.set_size_inches(WIDTH_INCHES, MARGIN_INCHES + LANE_INCHES * len(lanes))
        for number, lane in enumerate(lanes):
            for kind, shade in KINDS.items():
                bars = [one for one in shown if (one.lane, one.kind) == (lane, kind)]
                _bars(axes, number, bars, shade)
        axes.set_yticks(range(len(lanes)), lanes)
        axes.set(xlim=(start_s, end_s), ylim=(len(lanes) - 0.5, -0.5), xlabel="seconds")
        _legend(axes)


def _check(shown: Sequence[Activity], lanes: Sequence[str], start_s: float, end_s: float) -> None:
    window = f"from {start_s:g} s to {end_s:g} s"
    if not shown:
        raise UserError(f"nothing happened {window}: choose another window, or record a timeline")
    if len(shown) > BARS_MAX or len(lanes) > LANES_MAX:
        raise UserError(
            f"{len(shown)} bars in {len(lanes)} lanes {window} are more than can be seen "
            f"({BARS_MAX}, {LANES_MAX}): choose a shorter window or fewer lanes"
        )


def in_pipeline_order(lane: str) -> tuple[list[int], bool, str]:
    """`ring 0 link 0` comes after `ring 0 stage 0` and before `ring 0 stage 1`."""
    return [int(number) for number in re.findall(r"\d+", lane)], "link" in lane, lane


def _bars(axes: Any, number: int, bars: Sequence[Activity], shade: str) -> None:
    spans = [(one.start_s, one.end_s - one.start_s) for one in bars]
    low = number - BAR_HEIGHT / 2
    edge = "white" if len(bars) <= EDGED_BARS_MAX else "face"
    axes.broken_barh(
        spans, (low, BAR_HEIGHT), facecolor=shade, edgecolor=edge, linewidth=0.2, snap=False
    )


def _legend(axes: Any) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=shade, label=kind) for kind, shade in KINDS.items()]
    axes.legend(
        handles=handles,
        frameon=False,
        fontsize=8,
        ncols=2,
        loc="lower right",
        bbox_to_anchor=(1, 1),
    )
