"""Draws the diagrams of the documents, each as docs/images/NAME.svg: `python -m tools.drawings`.

A drawing is a list of boxes, lines and labels with their places, so that who changes a picture
changes a line. Mermaid was rejected: a forge draws it, but the site would have to load a script for
it, and nobody says where its arrows cross. Pictures are as narrow as a telephone can show them, and
have a background of their own, as the site's dark theme need not be the browser's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

__all__ = ["DRAWINGS", "IMAGES", "Box", "Drawing", "Label", "Line", "box_labels", "draw"]

IMAGES = Path(__file__).parents[1] / "docs" / "images"

STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .quiet { fill: #59636e; font-size: 13px }
.back { fill: #ffffff } .frame { fill: #f6f8fa; stroke: #8c959f }
.part { fill: #ddf4ee; stroke: #0b7a66; stroke-width: 2 }
.plain { fill: #ffffff; stroke: #57606a; stroke-width: 1.5 }
path { fill: none; stroke: #0b7a66; stroke-width: 2 }
.control { stroke: #57606a; stroke-width: 1.5 } .dashed { stroke-dasharray: 5 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .quiet { fill: #9198a1 }
  .back { fill: #0d1117 } .frame { fill: #161b22; stroke: #6e7681 }
  .part { fill: #10362f; stroke: #3ecfb2 } .plain { fill: #0d1117; stroke: #9198a1 }
  path { stroke: #3ecfb2 } .control { stroke: #9198a1 }
}
"""

HEAD = 6
"""Pixels of an arrow's head, to each side."""

LINE = 18
"""Pixels from one line of a text to the next."""


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines below it, in its middle; those of a frame are on top."""

    x: int
    y: int
    width: int
    height: int
    text: tuple[str, ...]
    kind: Literal["part", "plain", "frame"] = "part"


@dataclass(frozen=True)
class Line:
    """An arrow along points, each level with or below or above the one before."""

    points: tuple[tuple[int, int], ...]
    kind: Literal["link", "control"] = "link"
    heads: Literal[0, 1, 2] = 1
    """Ends with a head: the last point, and with 2 the first one, too."""


@dataclass(frozen=True)
class Label:
    """Words beside a line."""

    x: int
    y: int
    text: str
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(frozen=True)
class Drawing:
    """One picture; `alt` says what it shows to who does not see it."""

    name: str
    width: int
    height: int
    alt: str
    parts: tuple[Box | Line | Label, ...]


def draw(drawing: Drawing) -> str:
    """The picture as SVG, which loads nothing and runs nothing."""
    size = f'width="{drawing.width}" height="{drawing.height}"'
    shapes = "\n".join("".join(_shape(part)) for part in drawing.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'viewBox="0 0 {drawing.width} {drawing.height}" role="img">'
        f"<title>{escape(drawing.alt)}</title><style>{STYLE}</style>\n"
        f'<rect class="back" {size} rx="8"/>\n{shapes}\n</svg>\n'
    )


def _shape(part: Box | Line | Label) -> Iterator[str]:
    match part:
        case Box():
            place = f'x="{part.x}" y="{part.y}" width="{part.width}" height="{part.height}"'
            yield f'<rect class="{part.kind}" {place} rx="6"/>'
            for label, look in box_labels(part):
                yield _text(label, look)
        case Line():
            look = "control dashed" if part.kind == "control" else "link"
            steps = "L".join(f"{x} {y}" for x, y in part.points)
            yield f'<path class="{look}" d="M{steps}"/>'
            yield from _heads(part)
        case Label():
            yield _text(part, "quiet")


def box_labels(box: Box) -> Iterator[tuple[Label, str]]:
    """The lines of a box's text with their looks."""
    above = (box.height - LINE * len(box.text)) // 2 if box.kind != "frame" else 4
    for row, text in enumerate(box.text):
        y = box.y + above + LINE * row + 14
        yield Label(box.x + box.width // 2, y, text, "middle"), "quiet" if row else "title"


def _heads(line: Line) -> Iterator[str]:
    look = "control" if line.kind == "control" else "link"
    ends = (line.points[-2:], line.points[1::-1])[: line.heads]
    for (from_x, from_y), (x, y) in ends:
        back_x, back_y = _sign(from_x - x) * HEAD, _sign(from_y - y) * HEAD
        one = f"{x + back_x + back_y} {y + back_y + back_x}"
        other = f"{x + back_x - back_y} {y + back_y - back_x}"
        yield f'<path class="{look}" d="M{one}L{x} {y}L{other}"/>'


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _text(label: Label, look: str) -> str:
    anchor = "" if label.anchor == "start" else f' text-anchor="{label.anchor}"'
    return f'<text class="{look}" x="{label.x}" y="{label.y}"{anchor}>{escape(label.text)}</text>'


ARCHITECTURE = Drawing(
    "architecture",
    520,
    464,
    "A user asks the coordinator over HTTP. The coordinator commands an agent on each of three PCs "
    "over MQTT, and each agent starts a stage process. The coordinator submits requests to stage "
    "0, the head. Links lead from stage 0 to 1 and from 1 to 2. Stage 2, the tail, sends sampled "
    "tokens to the head, and a copy to the coordinator.",
    (
        Box(200, 14, 120, 32, ("API user",), "plain"),
        Line(((260, 48), (260, 80)), heads=2),
        Label(270, 69, "HTTP"),
        Box(20, 82, 480, 60, ("coordinator", "API, plans, broker"), "plain"),
        *(Box(x, 214, 150, 176, (f"PC {pc}",), "frame") for pc, x in enumerate((20, 185, 350), 1)),
        Line(((38, 144), (38, 326))),
        Label(46, 182, "Submit, Cancel"),
        *(Line(((x, 144), (x, 244)), "control", 2) for x in (157, 300, 363)),
        Label(292, 182, "control, MQTT", "end"),
        Line(((482, 326), (482, 144))),
        Label(474, 182, "Sampled", "end"),
        *(Box(x, 246, 104, 40, ("agent",), "plain") for x in (60, 208, 356)),
        *(Line(((x, 288), (x, 326)), "control", 2) for x in (112, 260, 408)),
        Label(120, 312, "pipe"),
        Box(30, 328, 130, 52, ("stage 0", "head")),
        Box(195, 328, 130, 52, ("stage 1",)),
        Box(360, 328, 130, 52, ("stage 2", "tail")),
        Line(((162, 354), (193, 354))),
        Line(((327, 354), (358, 354))),
        Line(((425, 382), (425, 424), (95, 424), (95, 382))),
        Label(260, 446, "Sampled: the next round begins", "middle"),
    ),
)

DRAWINGS = (ARCHITECTURE,)


def main() -> None:
    """Write each of `DRAWINGS` into docs/images, as SVG."""
    for drawing in DRAWINGS:
        (IMAGES / f"{drawing.name}.svg").write_text(draw(drawing), encoding="utf-8")


if __name__ == "__main__":
    main()
