"""Records an answer during which a stage is killed, and draws the picture of the README from it.

    python tools/lost_pc.py record docs/images/lost_pc.jsonl
    python tools/lost_pc.py draw docs/images/lost_pc.jsonl docs/images/lost-pc.svg

`record` starts `molink serve demo` with three stages behind emulated home links, asks it one
question, kills the stage in the middle with SIGKILL, and writes when each piece of the answer came
and what the cluster said. `draw` plays that in an SVG at the speed at which it was: nothing in it
moves that was not recorded. SMIL and no script, so that a forge shows it as an image.
"""

import asyncio
import json
import os
import re
import signal
import sys
import textwrap
import time
from html import escape
from pathlib import Path
from typing import Any

from molink.client.api_client import ApiClient

STAGES, LINK = 3, "100:30"
PROMPT = "Tell me a story about a fox and a lighthouse."
ASKED = {"prompt": "", "max_tokens": 160, "temperature": 0.7, "seed": 7}
KILL_AFTER_TOKENS = 35
VICTIM = 1

WIDTH, LINE, LEFT, TOP = 760, 26, 40, 210
CHARACTERS = 72
REST_S = 4.0
"""How long the whole answer stays before it begins anew."""

STYLE = """
text { font: 16px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.quiet { fill: #59636e } .pc { fill: #ddf4ee; stroke: #0b7a66; stroke-width: 2 }
.off { fill: #ffe2dd; stroke: #c4321f; stroke-width: 2; stroke-dasharray: 6 4 }
.bad { fill: #b42318 } .back { fill: #ffffff }
.line { stroke: #0b7a66; stroke-width: 2; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .quiet { fill: #9198a1 } .back { fill: #0d1117 }
  .pc { fill: #10362f; stroke: #3ecfb2 } .off { fill: #481c18; stroke: #ff8a78 }
  .bad { fill: #ff9d8f } .line { stroke: #3ecfb2 }
}
"""


# -- the recording --------------------------------------------------------------------------------


async def record() -> list[dict[str, Any]]:
    """The events of one answer during which a stage is killed, by their times."""
    command = (sys.executable, "-m", "molink.cli.main", "serve", "demo", "--port", "0")
    server = await asyncio.create_subprocess_exec(
        *command, "--nodes", str(STAGES), "--link", LINK, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        url = (await server.stdout.readline()).decode().split()[-1]
        return await _answer(url)
    finally:
        server.send_signal(signal.SIGINT)
        await server.wait()


async def _answer(url: str) -> list[dict[str, Any]]:
    async with ApiClient(url) as client:
        stages = (await client.get("/cluster"))["rings"][0]["stages"]
        held = [[one["node"], one["layers"]] for one in stages]
        seen = (await client.get("/cluster/events"))["next"]
        began_s = time.monotonic()
        lines: list[dict[str, Any]] = [{"at_s": 0.0, "asked": PROMPT, "stages": held, "link": LINK}]
        body = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], **ASKED}
        del body["prompt"]
        count = 0
        async for event in client.stream("/v1/chat/completions", body):
            text = "".join(one["delta"].get("content") or "" for one in event.get("choices", ()))
            if text:
                lines.append({"at_s": time.monotonic() - began_s, "text": text})
                count += 1
            if count == KILL_AFTER_TOKENS and stages:
                os.kill(stages[VICTIM]["pid"], signal.SIGKILL)
                lines.append({"at_s": time.monotonic() - began_s, "killed": VICTIM})
                stages = []
        told = (await client.get(f"/cluster/events?after={seen}"))["events"]
        now_s, now_unix_s = time.monotonic() - began_s, time.time()
        for one in told:
            at_s = now_s - (now_unix_s - one["unix_s"])
            lines.append({"at_s": at_s, "event": one["kind"], "told": one["text"]})
    return sorted(lines, key=lambda line: line["at_s"])


# -- the picture ----------------------------------------------------------------------------------


def draw(lines: list[dict[str, Any]]) -> str:
    """The SVG of a recording."""
    (killed_s,) = [line["at_s"] for line in lines if "killed" in line]
    after_s = next(line["at_s"] for line in lines if "text" in line and line["at_s"] > killed_s)
    end_s = lines[-1]["at_s"] + REST_S
    rows, height = _words(lines, end_s)
    pause = f"Its layers are loaded again: {after_s - killed_s:.1f} s without a token."
    states = (
        (0.0, killed_s, "quiet", "One token goes once around the ring."),
        (killed_s, after_s, "bad", "A PC is switched off. The answer waits."),
        (after_s, end_s, "quiet", f"{pause} The answer goes on where it was."),
    )
    shown = "".join(
        f'<text class="{kind}" x="{LEFT}" y="150" {_hidden(start)}>{escape(text)}'
        f"{_between(start, end, end_s)}</text>"
        for start, end, kind, text in states
    )
    boxes = _boxes(lines[0]["stages"], killed_s, after_s, end_s)
    alt = "Three PCs answer a question; one is switched off, and the answer goes on."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{alt}</title><style>{STYLE}</style>"
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="8"/>{boxes}{shown}'
        f'<text class="quiet" x="{LEFT}" y="{TOP - 24}">{escape(lines[0]["asked"])}</text>'
        f"{rows}</svg>\n"
    )


def _boxes(stages: list[Any], killed_s: float, after_s: float, end_s: float) -> str:
    """PCs from left to right with lines between them; the one that is lost changes its look."""
    wide, gap = 190, 55
    parts = []
    for place, (_, layers) in enumerate(stages):
        x = LEFT + place * (wide + gap)
        parts.append(f'<rect class="pc" x="{x}" y="30" width="{wide}" height="70" rx="8"/>')
        if place == VICTIM:
            look = _between(killed_s, after_s, end_s)
            parts.append(
                f'<rect class="off" x="{x}" y="30" width="{wide}" height="70" rx="8" '
                f"{_hidden(killed_s)}>{look}</rect>"
            )
        text = f"layers {layers[0]} to {layers[1] - 1}"
        parts.append(f'<text x="{x + 16}" y="60">PC {place + 1}</text>')
        parts.append(f'<text class="quiet" x="{x + 16}" y="84">{text}</text>')
        if place < len(stages) - 1:
            start = x + wide
            parts.append(f'<path class="line" d="M{start + 6} 65h{gap - 14}m-8 -6l8 6l-8 6"/>')
    last = LEFT + (len(stages) - 1) * (wide + gap) + wide // 2
    parts.append(
        f'<path class="line" d="M{last} 104v14h-{last - LEFT - wide // 2}v-10m-6 8l6 -8l6 8"/>'
    )
    return "".join(parts)


def _words(lines: list[dict[str, Any]], end_s: float) -> tuple[str, int]:
    """Rows of the answer, each word shown from when it was whole; and the picture's height."""
    text, times = "", list[float]()
    for line in lines:
        text += line.get("text", "")
        times += [line["at_s"]] * len(line.get("text", ""))
    rows, at, y = [], 0, TOP
    for row in textwrap.wrap(text, CHARACTERS, break_long_words=False):
        spans = []
        for word in re.findall(r"\S+", row):
            at = text.index(word, at) + len(word)
            spans.append(
                f'<tspan fill-opacity="0">{escape(word)} '
                f"{_between(times[at - 1], end_s, end_s, 'fill-opacity')}</tspan>"
            )
        rows.append(f'<text x="{LEFT}" y="{y}" xml:space="preserve">{"".join(spans)}</text>')
        y += LINE
    return "".join(rows), y


def _hidden(start_s: float) -> str:
    return 'opacity="0"' if start_s else ""


def _between(start_s: float, end_s: float, all_s: float, what: str = "opacity") -> str:
    """An animation that shows its element from one moment to another, again and again."""
    times, values = [0.0], ["1" if start_s == 0 else "0"]
    if start_s:
        times, values = [*times, start_s / all_s], [*values, "1"]
    if end_s < all_s:
        times, values = [*times, end_s / all_s], [*values, "0"]
    shares = ";".join(f"{one:.4f}" for one in times)
    return (
        f'<animate attributeName="{what}" calcMode="discrete" values="{";".join(values)}" '
        f'keyTimes="{shares}" dur="{all_s:.2f}s" repeatCount="indefinite"/>'
    )


def main() -> None:
    """Record, or draw what was recorded."""
    what, source, *target = sys.argv[1:]
    if what == "record":
        lines = asyncio.run(record())
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        Path(source).write_text(text, encoding="utf-8")
        return
    lines = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
    Path(target[0]).write_text(draw(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
