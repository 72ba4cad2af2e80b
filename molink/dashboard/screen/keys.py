"""Keys of the dashboard: what each does, and in which views."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from molink.dashboard.pages.lines import Line, Row, Style, TextSpan, line, text_of

VIEWS = (
    *("ring", "nodes", "requests", "links", "events", "forecast", "alerts"),
    *("keys", "given"),
)
"""Views in the order of their number keys."""

NAMED_MAX, ALL_NAMED_FROM = 7, 90
"""Views that the last line names on any terminal, and columns from which it names all of them."""

WITH_NODES = frozenset({"ring", "nodes", "forecast", "alerts", "given"})
"""Views whose rows are about nodes."""


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """Key, what it does, and where: `on` is "any", "node" (a row about a node is chosen), "live"
    or "replay"."""

    key: str
    shown: str
    action: str
    does: str
    on: str = "any"
    changes: bool = False
    """Whether it changes the cluster: not with --read-only, nor in a replay."""


KEYS = (
    *(
        KeyHelp(str(number), str(number), f"view('{name}')", f"the view {name}")
        for number, name in enumerate(VIEWS, 1)
    ),
    KeyHelp("tab", "Tab", "next_view(1)", "the next view"),
    KeyHelp("shift+tab", "Shift-Tab", "next_view(-1)", "the view before"),
    KeyHelp("colon", ":", "ask_place", "go anywhere: a view, a node (Tab completes); :q ends"),
    KeyHelp("slash", "/", "ask_filter", "filter the rows in place, by a regular expression"),
    KeyHelp("s", "s", "sort", "sort by the next column; after the last one as it was"),
    KeyHelp("S", "S", "turn", "sort the other way round"),
    KeyHelp("y", "y", "over('whole')", "the chosen row whole, field by field"),
    KeyHelp("l", "l", "over('log')", "what happened to the chosen node", "node"),
    KeyHelp("question_mark", "?", "help", "these keys"),
    KeyHelp("escape", "Esc", "close", "back; clears the filter"),
    KeyHelp("d", "d", "order('drain')", "drain the node", "node", changes=True),
    KeyHelp("u", "u", "order('resume')", "undo: let the node serve again", "node", changes=True),
    KeyHelp("x", "x", "order('remove')", "remove the PC for good", "node", changes=True),
    KeyHelp("i", "i", "order('invite')", "make an invite", "live", changes=True),
    KeyHelp("c", "c", "copy", "copy the invite", "live", changes=True),
    KeyHelp("p", "p", "order('intake')", "pause the intake of requests, or open it", "live", True),
    KeyHelp("space", "Space", "play", "play, or stand still", "replay"),
    KeyHelp("right_square_bracket", "]", "step(1)", "one look on", "replay"),
    KeyHelp("left_square_bracket", "[", "step(-1)", "one look back", "replay"),
    KeyHelp("right_curly_bracket", "}", "step(20)", "ten seconds on, or so", "replay"),
    KeyHelp("left_curly_bracket", "{", "step(-20)", "ten seconds back, or so", "replay"),
    KeyHelp("t", "t", "ask_time", "go to a time: 14:05:30, +30, -30", "replay"),
    KeyHelp("q", "q", "quit", "end"),
)

MOVES = (
    ("Up Down PgUp PgDn Home End", "move; j k g G as well"),
    ("Enter", "details of the chosen row"),
)


def keys_of(view: str, *, is_replay: bool, read_only: bool) -> Iterator[KeyHelp]:
    """Keys that do something in a view."""
    for key in KEYS:
        if key.changes and (read_only or is_replay):
            continue
        if (key.on == "replay" and not is_replay) or (key.on == "live" and is_replay):
            continue
        if key.on == "node" and view not in WITH_NODES:
            continue
        yield key


def help_rows(view: str, *, is_replay: bool, read_only: bool) -> list[Row]:
    """The keys of a view, one a line."""
    rows = [Row(line(TextSpan(f"Keys in the view {view}", "title"))), Row(line(""))]
    moves = [*MOVES, (f"1 to {len(VIEWS)}", "the views, as the last line names them")]
    moves += [
        (key.shown, key.does)
        for key in keys_of(view, is_replay=is_replay, read_only=read_only)
        if not key.shown.isdigit()
    ]
    rows += [Row(line(TextSpan(f"{shown:<28}", "accent"), does)) for shown, does in moves]
    if read_only and not is_replay:
        rows.append(Row(line(TextSpan("Started with --read-only: nothing can be changed.", "dim"))))
    return rows


def foot_line(view: str, width: int, place: str, *, is_replay: bool) -> Line:
    """The views and the keys to begin with; and the place in the rows, where there is room."""
    spans: list[TextSpan] = []
    for number, name in enumerate(VIEWS, 1):
        style: Style = "bold" if name == view else "dim"
        is_named = name == view or number <= NAMED_MAX or width >= ALL_NAMED_FROM
        shown = f"{number} {name} " if is_named else f"{number} "
        spans.append(TextSpan(f"{'>' if name == view else ''}{shown}", style))
    keys = " Space [ ] t ?" if is_replay else " ? keys"
    spans.append(TextSpan(keys if is_replay or not place else " ?", "accent"))
    room = width - len(text_of(tuple(spans))) - 2
    return (*spans, TextSpan(f"  {place}", "dim")) if len(place) <= room else tuple(spans)


def one_named(text: str, names: Iterable[str]) -> str | None:
    """The name that a text is, or the only one that it begins; None: none, or several."""
    known = list(names)
    found = [name for name in known if name.lower().startswith(text.lower())] if text else []
    return text if text in known else found[0] if len(found) == 1 else None
