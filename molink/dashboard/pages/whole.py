"""One object whole, field by field, and what happened to one node: for who wants all of it."""

from collections.abc import Iterator, Mapping
from datetime import tzinfo
from typing import Any

from molink.dashboard.model.history import History
from molink.dashboard.pages.lines import Glyphs, Line, TextSpan, line
from molink.report.figures import clock
from molink.report.plain import to_plain


def whole_lines(history: History, view: str, key: str, glyphs: Glyphs) -> list[Line]:
    """All fields of a row's subject, as the coordinator tells them; empty when it is gone."""
    found = _subject(history, view, key)
    return [] if found is None else list(_fields(to_plain(found), glyphs, ""))


def _subject(history: History, view: str, key: str) -> Any:
    state = history.state
    links = [link for ring in state.rings for link in ring.links]
    subjects: dict[str, list[tuple[str, Any]]] = {
        "requests": [(f"{one.id} {one.choice}", one) for one in history.requests or ()],
        "links": [(f"{one.source}>{one.target}", one) for one in links],
        "events": [(str(one.seq), one) for one in history.events],
    }
    of_nodes = [(one.id, one) for one in state.nodes]
    of_findings = [(one.id, one) for one in history.report().findings]
    found = [one for name, one in subjects.get(view, of_nodes + of_findings) if name == key]
    return found[-1] if found else None


def _fields(value: Any, glyphs: Glyphs, indent: str) -> Iterator[Line]:
    is_map = isinstance(value, Mapping)
    pairs = value.items() if is_map else ((f"- {n}", one) for n, one in enumerate(value))
    for name, one in pairs:
        label = TextSpan(f"{indent}{name}: ", "dim")
        is_simple = isinstance(one, list) and all(isinstance(part, int | str) for part in one)
        if isinstance(one, Mapping | list) and one and not is_simple:
            yield line(label)
            yield from _fields(one, glyphs, indent + "  ")
        else:
            shown = ", ".join(map(str, one)) if is_simple else "-" if one is None else str(one)
            yield line(label, glyphs.text(shown))


def log_lines(history: History, node_id: str, glyphs: Glyphs, zone: tzinfo | None) -> list[Line]:
    """Events of one node and of the rings that name it, the newest first; an agent's own log
    stays on its PC."""
    names = [one.name for one in history.state.nodes if one.id == node_id]
    name = names[0] if names else ""
    named = ((one, one.node == name or name in one.text.split()) for one in history.events)
    about = [one for one, is_named in named if name and is_named]
    return [
        line(
            TextSpan(f"{clock(event.unix_s, zone)} ", "dim"),
            TextSpan(f"{event.kind:<13}", "accent"),
            glyphs.text(event.text),
        )
        for event in reversed(about)
    ]
