"""The terminal application: draws what a source knows, and takes keys.

    header      what is shown, whether it serves, when it was seen
    alerts      what stands out, or that nothing does
    rows        the view, or a page over it
    panel       sparklines, on the first view
    prompt      a question, an order to confirm, or what became of the last one
    foot        the views and the first keys

It decides nothing: lines come from `pages`, orders go through `Actions`.
"""

import asyncio
import textwrap
from datetime import tzinfo

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.suggester import SuggestFromList
from textual.widgets import Input

from molink.dashboard.actions import Actions
from molink.dashboard.model.history import History
from molink.dashboard.pages.lines import Glyphs, Line, Style, TextSpan
from molink.dashboard.pages.panel import finding_lines, header, panel_lines
from molink.dashboard.screen.content import (
    Page,
    filter_line,
    is_too_small,
    page_rows,
    titles_of,
    too_small_lines,
)
from molink.dashboard.screen.keys import KEYS, VIEWS, foot_line, one_named
from molink.dashboard.screen.orders import Order, intake_order, invite_order, node_order
from molink.dashboard.screen.rows_view import LinesView, RowsView
from molink.dashboard.sources import ReplaySource, Source
from molink.errors import UserError
from molink.printable import printable_line

ALERTS_MAX = 3
"""Lines for what stands out; the view `alerts` has all."""

SAID_MAX = 4
"""Lines of one sentence from the server."""

PROMPT_MAX = 200
"""Characters that are taken of what is typed."""

ORDER_S_MAX = 30.0
"""Seconds for an order: the registry waits 5 s for its file at most."""


class DashboardApp(App[None]):
    """Dashboard of one source; without `actions` nothing can be changed."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; layout: vertical;
        overflow: hidden; }
    LinesView { height: 1; width: 100%; background: ansi_default; }
    RowsView { height: 1fr; width: 100%; background: ansi_default; scrollbar-size: 0 0; }
    Input, Input:focus { height: 1; width: 100%; border: none; padding: 0;
        background: ansi_default; color: ansi_default; background-tint: ansi_default 0%; }
    #asking, #small { display: none; }
    #asking { height: 1; }
    #mark { width: 3; }
    Screen.small LinesView, Screen.small RowsView, Screen.small #asking { display: none; }
    Screen.small #small { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [  # noqa: RUF012 - Textual's own form
        *(Binding(key.key, key.action, show=False, priority="tab" in key.key) for key in KEYS),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self,
        source: Source,
        glyphs: Glyphs,
        actions: Actions | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.title = "molink dashboard"
        self._source, self._glyphs, self._actions, self._zone = source, glyphs, actions, zone
        self._pages = [Page(VIEWS[0])]
        self._filter = ""
        self._sort: tuple[int, bool] | None = None
        self._order: Order | None = None
        self._asked = ""
        """Purpose of the prompt: place, filter, time, order; empty: it is closed."""
        self._said: list[Line] = []
        self._invite = ""

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield LinesView(id="small")
        yield LinesView(id="header")
        yield LinesView(id="alerts")
        yield LinesView(id="titles")
        yield RowsView(id="rows")
        yield LinesView(id="panel")
        yield LinesView(id="said")
        with Horizontal(id="asking"):
            yield LinesView(id="mark")
            yield Input(id="prompt", max_length=PROMPT_MAX, select_on_focus=False)
        yield LinesView(id="foot")

    def on_mount(self) -> None:
        """Begin to show what the source knows."""
        self.query_one("#prompt", Input).cursor_blink = False
        self._rows.focus()
        self.run_worker(self._source.run(self.draw), exclusive=False)
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        """Draw anew at another size, which shows other lines."""
        self.call_after_refresh(self.draw)

    # -- drawing ---------------------------------------------------------------------------------

    @property
    def _rows(self) -> RowsView:
        return self.query_one("#rows", RowsView)

    @property
    def _page(self) -> Page:
        return self._pages[-1]

    @property
    def history(self) -> History:
        """History that the source knows now."""
        return self._source.history

    @property
    def _replay(self) -> ReplaySource | None:
        return self._source if isinstance(self._source, ReplaySource) else None

    @property
    def _is_read_only(self) -> bool:
        return self._actions is None and self._replay is None

    def draw(self) -> None:
        """Draw everything that has changed."""
        width, height = self.size
        is_small = is_too_small(width, height)
        self.screen.set_class(is_small, "small")
        if is_small:
            self.query_one("#small", LinesView).show(too_small_lines(width, height))
            return
        history, page, glyphs = self.history, self._page, self._glyphs
        notes = [self._source.note, "read-only" if self._is_read_only else ""]
        note = ", ".join(one for one in notes if one)
        self._show("#header", header(history, self._source.url, width, glyphs, self._zone, note))
        alerts = finding_lines(history, width, ALERTS_MAX, glyphs)
        titles = [one for one in [titles_of(page, width)] if one]
        panel = panel_lines(history, width, glyphs) if page == Page(VIEWS[0]) else []
        for part, lines in (("#alerts", alerts), ("#titles", titles), ("#panel", panel)):
            self._show(part, *lines)
        self._draw_rows(2 + len((*alerts, *titles, *panel, *self._said)))
        self._draw_foot()
        self.call_after_refresh(self._draw_foot)  # How many rows are visible is known only then.

    def _draw_foot(self) -> None:
        line = foot_line(
            self._page.view, self.size.width, self._rows.place, is_replay=self._replay is not None
        )
        self._show("#foot", line)

    def _draw_rows(self, taken: int) -> None:
        width, height = self.size
        rows = page_rows(
            self._page,
            self.history,
            (width, height - taken),
            self._glyphs,
            zone=self._zone,
            filter_text=self._filter,
            sort_by=self._sort,
            is_replay=self._replay is not None,
            read_only=self._is_read_only,
        )
        self._rows.show(rows, has_cursor=self._page.has_cursor)
        kept = self._filter if self._page.kind == "view" else ""
        of = page_rows(self._page, self.history, (width, height), self._glyphs) if kept else ()
        self._show("#said", *self._said, *filter_line(kept, self._page.view, rows, of))

    def _show(self, part: str, *lines: Line) -> None:
        view = self.query_one(part, LinesView)
        view.display = bool(lines)
        view.show(lines)

    def _say(self, sentence: str, style: Style = "accent") -> None:
        shown = textwrap.wrap(self._glyphs.text(printable_line(sentence)), self.size.width - 2)
        self._said = [(TextSpan(f" {one}", style),) for one in shown[:SAID_MAX]]
        self.draw()

    # -- going about -----------------------------------------------------------------------------

    def action_view(self, name: str) -> None:
        """Show a view from its top, without a filter."""
        self._open(Page(name), on_top=False)

    def action_next_view(self, step: int) -> None:
        """Show the next view, or the one before; while something is typed, complete it."""
        if self._asked:
            self.query_one("#prompt", Input).action_cursor_right()
            return
        self.action_view(VIEWS[(VIEWS.index(self._page.view) + step) % len(VIEWS)])

    def action_help(self) -> None:
        """Show this view's keys."""
        self._open(Page(self._page.view, "help"))

    def action_close(self) -> None:
        """Close what lies on top, or clear the filter."""
        if len(self._pages) > 1:
            self._pages.pop()
        self._filter = ""
        self._say("")

    def on_rows_view_opened(self) -> None:
        """Show the details of the chosen row."""
        chosen, page = self._rows.chosen, self._page
        if chosen is not None and chosen.key:
            view = page.view if page.view in ("requests", "links", "events") else "nodes"
            self._open(Page(view, "details", chosen.key))

    def action_over(self, kind: str) -> None:
        """Show the chosen row whole, or what happened to its node."""
        key = "" if self._page.kind == "view" else self._page.key
        if not key and self._rows.chosen is not None:
            key = self._rows.chosen.key
        if key:
            self._open(Page(self._page.view, kind, key))

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, as the view has them."""
        titles = titles_of(self._page, self.size.width)[::2]
        column = 0 if self._sort is None else self._sort[0] + 1
        self._sort = (column, False) if column < len(titles) else None
        named = titles[column].text.strip() if self._sort is not None else ""
        self._say(f"Sorted by {named}; S: the other way round." if named else "As it comes.")

    def action_turn(self) -> None:
        """Sort the other way round."""
        if self._sort is not None:
            self._sort = self._sort[0], not self._sort[1]
            self.draw()

    def _open(self, page: Page, *, on_top: bool = True) -> None:
        under = [one for one in self._pages if one.kind == "view"] if on_top else []
        self._pages = [*under[-1:], page]
        if not on_top:
            self._filter, self._sort = "", None
        self._said = []
        self._rows.go_to_top()
        self.draw()

    # -- the prompt ------------------------------------------------------------------------------

    def action_ask_place(self) -> None:
        """Ask where to go."""
        self._ask("place", "a view, or a node's name", ":")

    def action_ask_filter(self) -> None:
        """Ask for a filter."""
        if self._page.kind == "view":
            self._ask("filter", "a word or a pattern; Enter keeps it, Esc clears it", "/")

    def action_ask_time(self) -> None:
        """Ask for a time of the recording."""
        if self._replay is not None:
            self._ask("time", "14:05:30, +30 or -30")

    def _ask(self, asked: str, hint: str, mark: str = ">") -> None:
        prompt, nodes = self.query_one("#prompt", Input), self.history.state.nodes
        names = [*VIEWS, *(one.name for one in nodes)] if asked == "place" else []
        prompt.suggester = SuggestFromList(names, case_sensitive=False)
        self._asked, prompt.value, prompt.placeholder = asked, "", hint
        self.query_one("#mark", LinesView).show([(TextSpan(f" {mark}", "accent"),)])
        self.query_one("#asking").display = True
        self.screen.set_focus(prompt)  # At once: what is typed next belongs into it.

    def _close_prompt(self) -> None:
        self._asked, self._order = "", None
        self.query_one("#asking").display = False
        self._rows.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """A filter works while it is typed; y and n answer at once."""
        if self._asked == "filter":
            self._filter = event.value
            self._rows.go_to_top()
            self.draw()
        elif self._order is not None and self._order.answer == "y" and event.value:
            self._answered(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the typed text for the purpose of the prompt."""
        asked, text = self._asked, event.value.strip()
        if asked == "order":
            self._answered(text)
            return
        self._close_prompt()
        if asked == "place":
            self._go(text)
        elif asked == "time" and self._replay is not None:
            try:
                self._replay.go_to(text)
            except UserError as error:
                self._say(str(error), "warning")

    def on_key(self, event: object) -> None:
        """Escape closes the prompt."""
        if getattr(event, "key", "") == "escape" and self._asked:
            self._filter = "" if self._asked == "filter" else self._filter
            self._close_prompt()
            self._say("")

    def _go(self, text: str) -> None:
        if text in ("q", "quit"):
            self.exit()
            return
        nodes = self.history.state.nodes_by_name
        if text not in nodes and (view := one_named(text, VIEWS)) is not None:
            self.action_view(view)
        elif (name := one_named(text, nodes)) is not None:
            self._open(Page("nodes", "details", nodes[name].id))
        elif text:
            views = ", ".join(VIEWS)
            self._say(f"There is no view and no node {text!r:.40}: {views}.", "warning")

    # -- orders ----------------------------------------------------------------------------------

    def action_order(self, kind: str) -> None:
        """Ask before an order is given."""
        if self._actions is None:
            why = "a recording" if self._replay is not None else "started with --read-only"
            self._say(f"Nothing can be changed here: this is {why}.", "warning")
            return
        order = self._order_of(kind, self._actions)
        if isinstance(order, str):
            self._say(order, "warning")
            return
        self._order = order
        self._ask("order", "")
        self._say(order.question, "warning")

    def _order_of(self, kind: str, actions: Actions) -> Order | str:
        if kind == "intake":
            return intake_order(self.history.state.intake_paused, actions)
        if kind == "invite":
            return invite_order(actions, self._show_invite)
        chosen = self._page.key if self._page.kind == "details" else None
        if chosen is None:
            chosen = self._rows.chosen.key if self._rows.chosen is not None else ""
        node = next((one for one in self.history.state.nodes if one.id == chosen), None)
        if node is None:
            return "Choose the row of a node first."
        return node_order(kind, node, actions)

    def _answered(self, text: str) -> None:
        order = self._order
        self._close_prompt()
        if order is None or text != order.answer:
            self._say("Nothing was changed.")
            return
        self._say("...")
        self.run_worker(self._give(order), exclusive=False)

    async def _give(self, order: Order) -> None:
        try:
            async with asyncio.timeout(ORDER_S_MAX):
                self._say(await order.give())
        except (UserError, TimeoutError) as error:
            self._say(str(error) or "The server did not answer: look whether it was done.", "bad")

    def _show_invite(self, command: str) -> None:
        self._invite = command
        self._open(Page(self._page.view, "invite", command))

    def action_copy(self) -> None:
        """Copy the last invite to the clipboard, by the terminal."""
        if self._invite:
            self.copy_to_clipboard(self._invite)
            self._say("Copied, if your terminal allows it; else mark the line with the mouse.")

    # -- a recording -----------------------------------------------------------------------------

    def action_play(self) -> None:
        """Play, or stand still."""
        if self._replay is not None:
            self._replay.toggle()

    def action_step(self, looks: int) -> None:
        """Go so many looks on, or back."""
        if self._replay is not None:
            self._replay.step(looks)
