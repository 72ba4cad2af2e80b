"""Hooks of mkdocs: the README and the code become pages, and links keep leading where they led.

Pages in `docs/` are written for two readers, a forge that shows the repository and the site, so
they link as files do. Whatever lies outside of `docs/` gets a page of its own here, and links to it
are turned to that page. The README is cut in two by its headings: what gets a newcomer going is the
quick start, all else the first page; so nothing is written twice.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs_site.api_page import api_page
from tools.docs_site.command_page import command_page
from tools.docs_site.python_page import python_page

__all__ = ["on_config", "on_files", "on_page_markdown"]

ROOT = Path(__file__).parents[2]

QUICK_START = (
    "Try it",
    "Serve a model",
    "Use it",
    "Lend a PC",
    "Run a cluster",
    "What you see",
    "Before any PC joins",
    "What the API does",
)
"""Headings of the README that make up the quick start, in its order."""

POINTER = """\
The quick start has a screen each: [try it](quick-start.md#try-it), [use it](quick-start.md#use-it),
[lend a PC](quick-start.md#lend-a-pc), [run a cluster](quick-start.md#run-a-cluster).

"""
"""What leads from the first page to the quick start of each role."""

PAGES_FROM_OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "windows/README.md": "windows.md",
}
"""Files outside of `docs/`, with the page that holds each."""

RECORDS = ("decisions/", "benchmarks/", "papers/", "changelog")
"""Pages that the search shows behind guides: they say how it came to be, not what to do."""

RECORDS_BOOST = 0.2

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where the nav names the folder."""
    config.nav = [
        {title: _folder_pages(value) if str(value).endswith("/") else value}
        for entry in config.nav or []
        for title, value in entry.items()
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files and from the code."""
    first, quick_start = readme_pages((ROOT / "README.md").read_text(encoding="utf-8"))
    made = {"index.md": first, "quick-start.md": quick_start, "commands.md": command_page()}
    made |= {"api.md": api_page(), "python.md": python_page()}
    for source, page in PAGES_FROM_OUTSIDE.items():
        made.setdefault(page, (ROOT / source).read_text(encoding="utf-8"))
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Turn links between files to links between pages of the site; the search has guides first."""
    own = page.file.src_uri
    if own.startswith(RECORDS):
        page.meta["search"] = {"boost": RECORDS_BOOST}
    outside = {made: source for source, made in PAGES_FROM_OUTSIDE.items()} | {
        "quick-start.md": "README.md"
    }
    return relinked(markdown, outside.get(own, f"docs/{own}"), own)


def readme_pages(readme: str) -> tuple[str, str]:
    """The README without its quick start, and the quick start, each with a title."""
    start, *rest = HEADING.split(readme)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    quick = "".join(f"## {title}{sections.pop(title)}" for title in QUICK_START)
    others = "".join(f"## {title}{text}" for title, text in sections.items())
    return f"{start}{POINTER}{others}", f"# Quick start\n\n{quick}"


def relinked(markdown: str, source: str, page: str) -> str:
    """`markdown` of the file `source` of the repository, linking as `page` of the site must."""

    def link(match: re.Match[str]) -> str:
        path, mark, anchor = match[2].partition("#")
        if not path or "://" in path or path.endswith(tuple(_MADE)):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = PAGES_FROM_OUTSIDE.get(target, target.removeprefix("docs/"))
        target = posixpath.relpath(target, posixpath.dirname(page))
        return f"{match[1]}{target}{mark}{anchor}{match[3]}"

    return LINK.sub(link, markdown)


_MADE = ("quick-start.md", "commands.md", "api.md", "python.md")
"""Pages that only the site has; links to them stand in what is made here."""


def _folder_pages(folder: str) -> list[str]:
    pages = sorted(file.name for file in (ROOT / "docs" / folder).glob("*.md"))
    pages.sort(key=lambda name: name != "README.md")
    return [folder + name for name in pages]
