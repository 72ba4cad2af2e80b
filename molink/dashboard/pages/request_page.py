"""Life of one request, as lines: parts of it under each other on one axis, then each ring's part.

wait     ▓▓▓                                        0.41 s
prefill     ▓▓▓▓▓▓▓▓▓                               1.20 s  480 tokens, 4 pieces
pieces      ●  ●  ●●
decode               ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓     6.10 s  47 rounds, p50 61 ms
pauses                       ▓▓▓▓▓▓                 2.10 s  in 1
recovery                           ▓▓▓              0.80 s  moved 1x

A piece stands where the ring's head sent it on its way; a pause is a gap between two tokens that is
far longer than the others; recovery is from the end of one ring to the next token of another.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import pairwise

from molink.dashboard.pages.columns import shown_layers
from molink.dashboard.pages.lines import Glyphs, Line, Style, TextSpan, field_line, line
from molink.report.figures import day_and_clock, seconds
from molink.report.requests import AttemptReport, PieceReport, RequestReport

AXIS_CELLS = 36

TEXT_WIDTH = 70
"""Width of the lines wrapped beneath a ring, so that all is seen on the smallest terminal."""

INDENT = " " * 8

Stretch = tuple[float, float]
"""Beginning and end, in seconds after the arrival."""


def request_lines(request: RequestReport, glyphs: Glyphs, zone: tzinfo | None) -> Iterator[Line]:
    """All that is known of a request."""
    choice = f", choice {request.choice}" if request.choice else ""
    yield line(TextSpan(f"{request.id}{choice}", "title"), TextSpan(f"  {request.state}", "accent"))
    came = day_and_clock(request.received_unix_s, zone)
    yield field_line("received", f"{came}, {request.key_id or 'without a key'}")
    yield field_line("prompt", _prompt(request))
    answer = f"{request.tokens:,} of at most {request.answer_tokens_max:,} tokens"
    yield field_line("answer", f"{answer}, {seconds(request.tpot_s)} a token")
    if request.forecast_ttft_s is not None:
        forecast = f"first token in {seconds(request.forecast_ttft_s)}"
        yield field_line("forecast", f"{forecast}, {seconds(request.forecast_tpot_s)} a token")
    if request.finish_reason:
        style: Style = "bad" if request.finish_reason == "error" else ""
        yield field_line("ended", f"{request.finish_reason} {request.error}".strip(), style)
    yield line("")
    axis = _Axis(request.total_s or request.age_s, glyphs)
    yield from _wait_and_prefill(request, axis)
    yield from _decode(request, axis)
    for attempt in request.attempts:
        yield line("")
        yield from _attempt(attempt)


def _prompt(request: RequestReport) -> str:
    told = f"{request.prompt_tokens_done:,} of {request.prompt_tokens:,} tokens"
    cached = request.cached_tokens
    return f"{told}, {cached:,} of them cached" if cached else f"{told} computed"


@dataclass(frozen=True, slots=True)
class _Axis:
    """Time from a request's arrival to its end or to now, as so many cells."""

    whole_s: float
    glyphs: Glyphs

    def bars(
        self, name: str, style: Style, stretches: Sequence[Stretch], note: str = ""
    ) -> Iterator[Line]:
        """A line with a bar for each stretch, and how long they are together; none without one."""
        if not stretches:
            return
        cells = [" "] * AXIS_CELLS
        for begins_s, ends_s in stretches:
            first = self._cell(begins_s)
            for at in range(first, max(first + 1, self._cell(ends_s))):
                cells[min(at, AXIS_CELLS - 1)] = self.glyphs.bar
        length = seconds(sum(ends_s - begins_s for begins_s, ends_s in stretches))
        yield line(f"{name:<9}", TextSpan("".join(cells), style), f"{length:>9}  {note}")

    def marks(self, name: str, style: Style, times_s: Sequence[float]) -> Iterator[Line]:
        """A line with a mark for each of these times; none without one."""
        if not times_s:
            return
        cells = [" "] * AXIS_CELLS
        for at_s in times_s:
            cells[min(self._cell(at_s), AXIS_CELLS - 1)] = self.glyphs.dot
        yield line(f"{name:<9}", TextSpan("".join(cells), style))

    def _cell(self, at_s: float) -> int:
        share = at_s / self.whole_s if self.whole_s > 0 else 0.0
        return round(AXIS_CELLS * min(1.0, max(0.0, share)))


def _wait_and_prefill(request: RequestReport, axis: _Axis) -> Iterator[Line]:
    waited_s = request.queue_s if request.queue_s is not None else axis.whole_s
    yield from axis.bars("wait", "warning", [(0.0, waited_s)])
    if request.prefill_s is None:
        prefill: list[Stretch] = [] if request.queue_s is None else [(waited_s, axis.whole_s)]
    else:
        prefill = [(waited_s, waited_s + request.prefill_s)]
    sent = [piece.sent_s for attempt in request.attempts for piece in attempt.pieces]
    pieces = f", {len(sent)} piece{'s' * (len(sent) != 1)}" if sent else ""
    computed = request.prompt_tokens - request.cached_tokens
    yield from axis.bars("prefill", "prefill", prefill, f"{computed} tokens{pieces}")
    yield from axis.marks("pieces", "prefill", sent)


def _decode(request: RequestReport, axis: _Axis) -> Iterator[Line]:
    if request.first_token_s is None or request.decode_s is None:
        return
    decode = [(request.first_token_s, request.first_token_s + request.decode_s)]
    yield from axis.bars("decode", "decode", decode, _rounds(request))
    pauses = [one for attempt in request.attempts for one in attempt.rounds.pauses]
    stretches = [(one.began_s, one.began_s + one.length_s) for one in pauses]
    yield from axis.bars("pauses", "warning", stretches, f"in {len(pauses)}")
    recoveries = _recoveries(request, axis.whole_s)
    yield from axis.bars("recovery", "bad", recoveries, f"moved {request.moves}x")


def _rounds(request: RequestReport) -> str:
    """How many there were, and what is usual on the ring that it is on."""
    told = sum(attempt.rounds.count for attempt in request.attempts)
    usual_s = request.attempts[-1].rounds.p50_s if request.attempts else None
    count = told or max(0, request.tokens - 1)
    return f"{count} rounds" + ("" if usual_s is None else f", p50 {seconds(usual_s)}")


def _recoveries(request: RequestReport, whole_s: float) -> list[Stretch]:
    """Stretches from the end of one ring's part to the first token of the next, or to now."""
    return [
        (left.ended_s, whole_s if took.first_token_s is None else took.first_token_s)
        for left, took in pairwise(request.attempts)
        if left.ended_s is not None
    ]


def _attempt(attempt: AttemptReport) -> Iterator[Line]:
    held = ", ".join(f"{stage.node} {shown_layers(stage.layers)}" for stage in attempt.stages)
    yield line(TextSpan(f"ring {attempt.number}", "bold"), f"  {held}")
    steps = (
        ("submitted", attempt.submitted_s),
        ("started", attempt.started_s),
        ("first token", attempt.first_token_s),
        ("ended", attempt.ended_s),
    )
    told = ", ".join(f"{name} {at_s:.2f} s" for name, at_s in steps if at_s is not None)
    yield from _wrapped(f"{told}; {attempt.tokens} tokens")
    yield from _pieces(attempt.pieces)
    yield from _rounds_of(attempt)
    if attempt.moved_because:
        yield line(TextSpan(f"{INDENT}moved on: {attempt.moved_because}", "warning"))


def _pieces(pieces: Sequence[PieceReport]) -> Iterator[Line]:
    if not pieces:
        return
    told = ", ".join(f"{one.tokens[0]}-{one.tokens[1]} at {one.sent_s:.2f} s" for one in pieces)
    yield from _wrapped(f"tokens of the prompt: {told}")


def _wrapped(text: str) -> Iterator[Line]:
    for piece in textwrap.wrap(text, TEXT_WIDTH):
        yield line(f"{INDENT}{piece}")


def _rounds_of(attempt: AttemptReport) -> Iterator[Line]:
    rounds = attempt.rounds
    if not rounds.count:
        return
    usual = f"p50 {seconds(rounds.p50_s)}, p95 {seconds(rounds.p95_s)}"
    yield line(f"{INDENT}{rounds.count} rounds: {usual}, longest {seconds(rounds.longest_s)}")
    for one in rounds.pauses:
        what = f"pause of {seconds(one.length_s)} at {one.began_s:.2f} s, after {one.tokens} tokens"
        yield line(TextSpan(f"{INDENT}{what}", "warning"))
