"""The icon in the tray of a desktop, by pystray: a client of the agent's socket, as the page is.

pystray takes what the desktop has: an AppIndicator or GTK where the system's `gi` is importable, or
a tray of X11. It runs in the owner's session, while the agent may be a service.
"""

import asyncio
import threading
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molink.errors import MolinkError, UserError
from molink_agent.local_socket import ask_agent
from molink_agent.page.server import PagePlace, read_view
from molink_agent.tray.view import TrayView, tray_view

ASKED_S = 5.0
"""Seconds between two looks at the agent."""

SIZE_PX = 64
MARGIN_PX = 6


def desktop() -> Any:
    """pystray with a backend for this desktop. Raises UserError where one of both is missing."""
    try:
        import pystray
    except ImportError:
        raise UserError("The icon needs pystray: pip install 'molink[tray]'.") from None
    except Exception as error:  # Each backend raises its own where there is no display.
        raise UserError(
            f"No desktop here shows icons ({error}): molink agent page shows the same."
        ) from None
    return pystray


@dataclass(slots=True)
class Tray:
    """The icon of one agent, and what it shows."""

    data_dir: Path
    view: TrayView = field(default_factory=lambda: tray_view(None))
    _done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Show the icon until its menu ends it. Raises UserError where that cannot be."""
        pystray = desktop()
        self.look()
        menu = pystray.Menu(lambda: self.items(pystray))
        icon = pystray.Icon("molink", self.picture(), self._title(), menu)

        def follow(shown: Any) -> None:
            shown.visible = True
            while not self._done.wait(ASKED_S):
                self.look()
                self.show(shown)

        try:
            icon.run(follow)
        finally:
            self._done.set()

    def look(self) -> None:
        """Ask the agent what it does."""
        try:
            self.view = tray_view(asyncio.run(read_view(self.data_dir)))
        except MolinkError:
            self.view = tray_view(None)

    def show(self, icon: Any) -> None:
        """Bring the icon up to what is known."""
        icon.icon, icon.title = self.picture(), self._title()
        icon.update_menu()

    def items(self, pystray: Any) -> Iterator[Any]:
        """The menu: sentences, then what can be done."""
        for sentence in self.view.sentences:
            yield pystray.MenuItem(sentence, None, enabled=False)
        yield pystray.Menu.SEPARATOR
        if self.view.paused is not None:
            order, said = ("resume", "Lend again") if self.view.paused else ("pause", "Pause")
            yield pystray.MenuItem(said, self._ordering(order))
            yield pystray.MenuItem("Open the page", self._open_page, default=True)
        yield pystray.MenuItem("Remove this icon", self._end)

    def picture(self) -> Any:
        """The icon: a ring in the colour of the state, as the page's."""
        from PIL import Image, ImageDraw

        image = Image.new("RGBA", (SIZE_PX, SIZE_PX), (0, 0, 0, 0))
        box = (MARGIN_PX, MARGIN_PX, SIZE_PX - MARGIN_PX, SIZE_PX - MARGIN_PX)
        ImageDraw.Draw(image).ellipse(box, outline=self.view.color, width=2 * MARGIN_PX)
        return image

    def _title(self) -> str:
        return f"MoLink: {self.view.sentences[0]}"

    def _ordering(self, order: str) -> Callable[[Any], None]:
        def give(icon: Any) -> None:
            try:
                asyncio.run(ask_agent(self.data_dir, {"command": order}))
            except MolinkError as error:
                icon.notify(str(error), "MoLink")
            self.look()
            self.show(icon)

        return give

    def _end(self, icon: Any) -> None:
        self._done.set()  # Stopping waits for whoever follows.
        icon.stop()

    def _open_page(self, icon: Any) -> None:
        place = PagePlace.load(self.data_dir)
        if place.port:
            webbrowser.open(place.url)
        else:
            icon.notify("The page of this PC is not served; its log says why.", "MoLink")
