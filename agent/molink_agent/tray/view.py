"""What the tray icon shows, made of what the owner's page shows. Pure."""

from typing import NamedTuple

from molink_agent.page.view import PageView

GREEN, AMBER, GREY, RED = "#2e9e5b", "#d99a1c", "#8a8f98", "#c8402f"
"""It serves; it is on its way; it lends nothing now, as its owner wishes; nothing is lent, and why
stands in the menu."""

NOT_RUNNING = "The agent does not run: molink agent run starts it."


class TrayView(NamedTuple):
    """What the icon and its menu show."""

    color: str
    sentences: tuple[str, ...]
    """What it does first, then problems, then what was given."""
    paused: bool | None
    """None: there is no agent to pause."""


def tray_view(page: PageView | None) -> TrayView:
    """What is shown of an agent's state; of none, that it does not run."""
    if page is None:
        return TrayView(RED, (NOT_RUNNING,), None)
    given = f"Since noon: {page['tonight']}" if page["tonight"] else ""
    sentences = filter(None, (page["now"], *page["problems"], given))
    return TrayView(_color(page), tuple(sentences), page["paused"])


def _color(page: PageView) -> str:
    if page["paused"]:
        return GREY
    if page["problems"] or not page["connected"]:
        return RED
    return GREEN if page["now"].startswith("serving") else AMBER
