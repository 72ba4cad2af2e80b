"""The first screen: rings as they are, from head to tail and back.

    ring 1  2.8 of 3 micro-batches, round 61 ms  2 running, 0 waiting  cached 62 %, 4096 tokens
    ╭    anna        0-8    ███░░░░░  41 %  step 12 ms  KV 12 %
    │●   ▼ 98.1 Mbps  30 ms  ██░░░░  20 %   decode   1.2 KB ●
    │                                       prefill  120 KB
    ╰●●  ben         8-16   ████████ 100 %  step 61 ms  KV 12 %  ▲ 3.1x slower
         ▲ 41.0 Mbps  31 ms  ░░░░░░   2 %   decode      0 B

The dots down the left side are micro-batches, where they are. The busiest stage and the one that
has become slower stand out by a mark, a word and a colour. Where the lines of a ring do not fit,
decode and prefill share one; where these do not fit either, a link stands at the end of its stage's
line.
"""

from collections.abc import Iterator, Sequence

from molink.dashboard.model.circling import Circling, circling
from molink.dashboard.model.history import History
from molink.dashboard.pages.columns import shown_layers
from molink.dashboard.pages.lines import Glyphs, Line, Row, Style, TextSpan, fitted, line, text_of
from molink.findings.series import stage_key
from molink.findings.stages import SlowStage, slow_stages, slowest_stage
from molink.report.capabilities import parts_of
from molink.report.cluster import COORDINATOR, RingLink, RingReport, StageReport
from molink.report.figures import data, mbps, percent, seconds, thousands
from molink.report.prefix_cache import CacheReport

BUSY_BAD = 0.9
"""A stage so busy has nothing to spare."""

NOTES_WIDTH = 120
"""Narrower screens do not show notes such as what a stage has borrowed: its node's details do."""

QUEUE_DOTS_MAX = 8

CIRCLING_CELLS = 3
"""Dots for micro-batches at one place; more of them are a number with a dot."""

FULL, COMPACT, SHORT = 3, 2, 1
"""Lines that a stage takes, with the link after it."""


def ring_rows(history: History, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """All rings in `width` columns, with as many lines each as fit in `height`; more than that
    when there are more stages than lines."""
    rings = history.state.rings
    if not rings:
        return _without_rings(history)
    stages = sum(len(ring.stages) for ring in rings)
    room = max(1, height - 2 * len(rings)) / max(1, stages)
    detail = FULL if room >= FULL else COMPACT if room >= COMPACT else SHORT
    slow = {(one.ring, one.node): one for one in slow_stages(history)}
    rows: list[Row] = []
    for ring in rings:
        pace, circles = slowest_stage(history, ring), circling(ring)
        rows.append(Row(_title(ring, width, glyphs)))
        if detail == FULL:
            rows += _entrance(history, ring, width, glyphs)
        for index in range(len(ring.stages)):
            painter = _StageRows(history, ring, index, slow, pace, circles, width, glyphs)
            rows += painter.rows(detail)
    return rows


def _without_rings(history: History) -> list[Row]:
    """Rows that tell what each node does, when nothing serves."""
    counts = ", ".join(f"{n} {state}" for state, n in sorted(history.state.counts().items()))
    rows = [Row(line(TextSpan("No ring serves.", "bad"), f"  {counts or 'No PC has joined.'}"))]
    for node in history.state.nodes:
        if node.state == "loading":
            done = f"{percent(node.loaded)} loaded" if node.loaded is not None else "loads"
            rows.append(Row(line(f"  {fitted(node.name, 20)} ", TextSpan(done, "accent")), node.id))
    return rows


def _title(ring: RingReport, width: int, glyphs: Glyphs) -> Line:
    """Title of a ring, as far as it fits; what the cache saves goes before the rest."""
    parts: list[TextSpan | str] = [TextSpan(f"ring {ring.number}", "title"), "  "]
    if ring.micro_batches:
        noun = "micro-batch" if ring.micro_batches == 1 else "micro-batches"
        parts.append(f"{_circling(ring)}{ring.micro_batches} {noun}")
    if ring.round_s is not None:
        parts.append(f", round {seconds(ring.round_s)}")
    requests = ring.requests
    parts += ["  ", TextSpan(f"{requests.running} running, {requests.waiting} waiting", "bold")]
    if guessed := max(ring.drafters, key=lambda one: one.rounds, default=None):
        drafts = f"drafts of {glyphs.text(guessed.name)}: {guessed.tokens_per_round:.1f} tokens"
        parts += ["  ", TextSpan(f"{drafts} a round", "dim")]
    wire: list[TextSpan | str] = []
    if ring.wire.codec:
        wire = ["  ", TextSpan(f"wire {glyphs.text(ring.wire.codec)}", "dim")]
    cache = ring.prefix_cache
    if cache is None or cache.recent_hit_rate is None:
        return line(*parts, *wire)
    hits: list[TextSpan | str] = ["  ", TextSpan(f"cached {percent(cache.recent_hit_rate)}", "dim")]
    held = TextSpan(f", {_cached(cache)}", "dim")
    titles = [line(*parts, *end) for end in ([*wire, *hits, held], [*hits, held], hits)]
    return next((one for one in titles if len(text_of(one)) <= width), titles[-1])


def _cached(cache: CacheReport) -> str:
    """Tokens that are cached, in the devices and below."""
    found = [f"{thousands(cache.tokens or 0)} tokens"]
    if cache.tiers is not None:
        below = ((cache.tiers.host_tokens, "in host memory"), (cache.tiers.file_tokens, "on disk"))
        found += [f"{thousands(tokens)} {where}" for tokens, where in below if tokens]
    return ", ".join(found)


def _circling(ring: RingReport) -> str:
    """How many of the micro-batches that may circle do."""
    return "" if ring.circling is None else f"{ring.circling:.1f} of "


def _entrance(history: History, ring: RingReport, width: int, glyphs: Glyphs) -> Iterator[Row]:
    link = ring.link(COORDINATOR, ring.stages[0].node) if ring.stages else None
    if link is not None:
        spans = _link_figures(history, link, glyphs)
        yield Row(line(TextSpan(f"  {COORDINATOR} {glyphs.down} ", "dim"), *spans))


class _StageRows:
    """Rows of one stage and of the link after it."""

    def __init__(
        self,
        history: History,
        ring: RingReport,
        index: int,
        slow: dict[tuple[int, str], SlowStage],
        pace: StageReport | None,
        circles: Circling | None,
        width: int,
        glyphs: Glyphs,
    ) -> None:
        self._history, self._ring, self._glyphs, self._width = history, ring, glyphs, width
        self._stage = ring.stages[index]
        self._is_last = index == len(ring.stages) - 1
        self._is_first = index == 0
        self._step_s = history.recent_step_s(stage_key(ring, index))
        self._slow = slow.get((ring.number, self._stage.node))
        self._sets_pace = pace is self._stage
        self._here = circles.stages[index] if circles is not None else 0
        self._on_link = circles.links[index] if circles is not None else 0
        following = ring.stages[(index + 1) % len(ring.stages)].node
        is_alone = following == self._stage.node
        self._link = None if is_alone else ring.link(self._stage.node, following)

    def rows(self, detail: int) -> list[Row]:
        """Rows of the stage and its link, with so much detail."""
        if detail == SHORT:
            count = self._here + self._on_link
            return [self._row(self._stage_line(count) + self._short_link())]
        rows = [self._row(self._stage_line(self._here))]
        if self._link is not None:
            rows += [self._row(one) for one in self._link_lines(self._link, detail)]
        return rows

    def _row(self, spans: Line) -> Row:
        node = self._history.state.nodes_by_name.get(self._stage.node)
        return Row(spans, node.id if node is not None else "", self._stage.node)

    def _stage_line(self, micro_batches: int) -> Line:
        stage, glyphs = self._stage, self._glyphs
        name_width = 13 + min(14, max(0, self._width - 80) // 3)
        layers = shown_layers(stage.layers)
        style = self._style()
        kv_style: Style = "warning" if (stage.kv_share or 0.0) >= BUSY_BAD else ""
        return line(
            TextSpan(self._side(), "dim"),
            self._dots(micro_batches),
            " ",
            TextSpan(fitted(glyphs.text(stage.node), name_width), style or "bold"),
            f" {fitted(layers, 7)} ",
            TextSpan(glyphs.bar_of(stage.busy_share, self._bar_width()), style or "good"),
            TextSpan(f"{percent(stage.busy_share):>6}", style),
            " step ",
            TextSpan(f"{seconds(self._step_s):>7}", style),
            " KV ",
            TextSpan(f"{percent(stage.kv_share):>5}", kv_style),
            *self._mark(),
            *self._notes(),
        )

    def _style(self) -> Style:
        if self._slow is not None:
            return "bad"
        return "warning" if self._sets_pace else ""

    def _mark(self) -> Line:
        mark = self._glyphs.mark
        if self._slow is not None:
            return (TextSpan(f"  {mark} {self._slow.times:.1f}x slower", "bad"),)
        if self._sets_pace:
            return (TextSpan(f"  {mark} sets pace", "warning"),)
        return ()

    def _notes(self) -> Line:
        if self._width < NOTES_WIDTH:
            return ()
        notes = [shown.note(part) for shown, part in parts_of(self._stage)]
        return tuple(TextSpan(f"  {note}", "dim") for note in notes if note)

    def _side(self) -> str:
        glyphs = self._glyphs
        if self._is_first and not self._is_last:
            return glyphs.corner_top
        return glyphs.corner_bottom if self._is_last else glyphs.side

    def _dots(self, micro_batches: int) -> TextSpan:
        dot = self._glyphs.dot
        shown = dot * micro_batches if micro_batches <= CIRCLING_CELLS else f"{micro_batches}{dot}"
        return TextSpan(shown.ljust(CIRCLING_CELLS), "decode")

    def _bar_width(self) -> int:
        return 10 + min(20, max(0, self._width - 80) // 3)

    def _link_lines(self, link: RingLink, detail: int) -> list[Line]:
        glyphs = self._glyphs
        side = " " if self._is_last else glyphs.side
        arrow = glyphs.up if self._is_last else glyphs.down
        figures = _link_figures(self._history, link, glyphs)
        decode = _queue("decode", link.decode_queued_bytes, link.decode_waiting, glyphs)
        prefill = _queue("prefill", link.prefill_queued_bytes, link.prefill_waiting, glyphs)
        dots = self._dots(self._on_link)
        first = line(
            TextSpan(side, "dim"), dots, TextSpan(f" {arrow} ", "dim"), *figures, "   ", *decode
        )
        if detail == COMPACT or self._is_last:
            return [(*first, TextSpan("  "), *prefill) if link.prefill_queued_bytes else first]
        indent = 1 + CIRCLING_CELLS + 3 + len(text_of(figures)) + 3
        return [first, line(TextSpan(side, "dim"), " " * (indent - 1), *prefill)]

    def _short_link(self) -> Line:
        if self._link is None:
            return ()
        return (TextSpan(f"  {self._glyphs.down} {mbps(self._link.rate_mbps)}", "dim"),)


def _link_figures(history: History, link: RingLink, glyphs: Glyphs) -> Line:
    busy = history.link_busy(link.ends)
    style: Style = "warning" if (busy or 0.0) >= BUSY_BAD else "dim"
    return (
        TextSpan(f"{mbps(link.rate_mbps):>10} {seconds(link.rtt_s):>7}  "),
        TextSpan(glyphs.bar_of(busy, 6), style),
        TextSpan(f"{percent(busy):>6}", style if style == "warning" else ""),
    )


def _queue(kind: Style, queued_bytes: int, transfers: int, glyphs: Glyphs) -> Sequence[TextSpan]:
    """Bytes of one class that wait; the dots are messages."""
    dots = glyphs.dot * min(transfers, QUEUE_DOTS_MAX)
    style: Style = kind if queued_bytes else "dim"
    return (TextSpan(f"{kind:<7} {data(queued_bytes):>7} {dots:<2}", style),)
