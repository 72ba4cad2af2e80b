"""The documents build into a site without a broken link, an orphan or a request to elsewhere."""

import json
import re
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

pytest.importorskip("material", reason="pip install -e .[docs]")
pytest.importorskip("mkdocstrings", reason="pip install -e .[docs]")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tools.docs_site.hooks import PAGES_FROM_OUTSIDE, RECORDS, readme_pages, relinked
from tools.docs_site.python_page import ROOMS

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "mkdocs.yml")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """As `make docs` builds it: a broken link raises."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(CONFIG, site_dir=str(folder)))
    return folder


class Loads(HTMLParser):
    """What a browser asks for by itself when it opens a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video") and given.get("src"):
            self.found.append(given["src"])
        if tag == "link" and given.get("rel") not in ("prev", "next", "canonical"):
            self.found.append(given["href"])


def pages_of(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_of_the_folder_is_there(site):
    written = {file.relative_to(ROOT / "docs") for file in (ROOT / "docs").rglob("*.md")}
    wanted = {
        page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
        for page in [*written, *map(Path, PAGES_FROM_OUTSIDE.values())]
    }
    assert wanted <= {page.relative_to(site) for page in pages_of(site)}


def test_the_first_page_has_a_door_for_each_role(site):
    first = (site / "index.html").read_text(encoding="utf-8")
    doors = ("clients", "volunteering", "operating", "can-i-run", "quick-start")
    roles = [f"quick-start.html#{role}" for role in ("use-it", "lend-a-pc", "run-a-cluster")]
    assert {*(f"{door}.html" for door in doors), *roles} - set(
        re.findall(r'href="([^"]+)"', first)
    ) == set()


def searched(site: Path) -> list[dict]:
    """The sections in the index that the site's search reads."""
    return json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("backup", "keeping.html"),
        ("rotate", "keys.html"),
        ("upgrade", "keeping.html"),
        ("rtx 3090", "can-i-run.html"),
        ("several models", "faq.html"),
        ("systemd", "keeping.html"),
    ],
)
def test_the_search_has_what_people_look_for(site, words, page):
    """One section of the page has all the words."""
    sections = [one for one in searched(site) if one["location"].partition("#")[0] == page]
    texts = [f"{one['title']} {one['text']}".lower() for one in sections]
    assert any(all(word in text for word in words.split()) for text in texts)


def test_the_search_has_guides_before_records(site):
    records = [one for one in searched(site) if one["location"].startswith(RECORDS)]
    guides = [one for one in searched(site) if one["location"].startswith(("faq", "keeping"))]
    assert records and all(one["boost"] < 1 for one in records)
    assert guides and not any("boost" in one for one in guides)


def test_nothing_is_asked_of_others(site):
    for page in pages_of(site):
        loads = Loads(page.read_text(encoding="utf-8")).found
        assert loads and not [one for one in loads if re.match(r"(?:\w+:)?//", one)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text()), style


def test_the_python_reference_has_every_public_name(site):
    page = (site / "python.html").read_text(encoding="utf-8")
    modules = [name for room in ROOMS.values() for name in room]
    wanted = {
        f"{module}.{name}"
        for module in modules
        for name in import_module(module).__all__
        if getattr(import_module(module), name).__class__ in (type, FunctionType)
        if getattr(import_module(module), name).__module__ == module
    }
    assert len(wanted) > 60
    assert wanted <= set(re.findall(r'id="([\w.]+)"', page))


def test_a_load_from_elsewhere_would_be_noticed():
    text = '<script src="//x.org/a.js"></script><link rel=stylesheet href="https://y.org">'
    assert Loads(text).found == ["//x.org/a.js", "https://y.org"]


def test_no_markdown_is_left_as_text(site):
    """Forges begin a list or a table without an empty line before it; the site does not."""
    for page in pages_of(site):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(encoding="utf-8"), re.DOTALL):
            assert not re.search(r"(?m)^(?:[-*] |\d+\. |\||#{1,4} |```)", paragraph), page


@pytest.mark.parametrize(
    ("text", "nav"),
    [
        ("[x](gone.md)", ["index.md"]),
        ("[x](#gone)", ["index.md"]),
        ("[x](/work/gone.md)", ["index.md"]),
        ("[x](folder)", ["index.md"]),
        ("words", [{"Other": "other.md"}]),
    ],
)
def test_what_is_broken_ends_the_build(tmp_path, text, nav):
    """With the site's own validation, on a page of one line."""
    (tmp_path / "docs").mkdir()
    for name in ("index.md", "other.md"):
        (tmp_path / "docs" / name).write_text(f"# Page\n\n{text}\n")
    own = load_config(CONFIG)
    config = load_config(
        CONFIG,
        docs_dir=str(tmp_path / "docs"),
        site_dir=str(tmp_path / "site"),
        nav=nav,
        hooks=[],
        plugins=[],
        theme={"name": "mkdocs"},
    )
    assert config.validation == own.validation
    with pytest.raises(Abort):
        build(config)


def test_the_readme_is_cut_in_two_without_loss():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first, quick_start = readme_pages(readme)
    for line in filter(None, readme.splitlines()):
        assert (line in first.splitlines()) + (line in quick_start.splitlines()) >= 1, line
    headings = re.findall(r"^## .+$", readme, re.MULTILINE)
    shown = re.findall(r"^## .+$", first + quick_start, re.MULTILINE)
    assert sorted(headings) == sorted(shown)


@pytest.mark.parametrize(
    ("link", "source", "page", "expected"),
    [
        ("docs/links.md", "README.md", "index.md", "links.md"),
        ("docs/operating.md#5-keys", "README.md", "quick-start.md", "operating.md#5-keys"),
        ("../windows/README.md", "docs/volunteering.md", "volunteering.md", "windows.md"),
        ("../docs/volunteering.md", "windows/README.md", "windows.md", "volunteering.md"),
        ("../scheduling.md", "docs/benchmarks/ring.md", "benchmarks/ring.md", "../scheduling.md"),
        ("quick-start.md#try-it", "docs/other.md", "other.md", "quick-start.md#try-it"),
        ("#here", "docs/links.md", "links.md", "#here"),
        ("https://example.org/a.md", "docs/links.md", "links.md", "https://example.org/a.md"),
    ],
)
def test_links_keep_leading_where_they_led(link, source, page, expected):
    assert relinked(f"See [it]({link}).", source, page) == f"See [it]({expected})."
