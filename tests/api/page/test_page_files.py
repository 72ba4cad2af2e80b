"""The page as it is served: to whom, with which headers, and what its files may not hold."""

import re
from importlib import resources
from pathlib import Path

import pytest

from molink.api import create_app, start_api
from molink.api.access import Access
from molink.api.page.routes import FILES, HEADERS, PAGE_PATHS

FOLDER = Path(str(resources.files("molink.api.page")))
SOURCES = sorted(
    file for file in FOLDER.iterdir() if file.suffix in (".html", ".css", ".js", ".svg")
)
MODULES = [file for file in SOURCES if file.suffix == ".js"]


@pytest.fixture
async def shut(service):
    """A server that wants keys of which there are none."""
    runner = await start_api(create_app(service, Access(required=True)), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
async def test_everybody_may_load_it_and_its_headers_are_strict(shut, http, path):
    for name in ("127.0.0.1", "chat.example"):  # Behind a proxy it has another name.
        async with http.get(shut + path, headers={"Host": name}) as response:
            assert response.status == 200
            assert {key: response.headers[key] for key in HEADERS} == HEADERS
            assert response.content_type.partition("/")[2] in (
                "html",
                "css",
                "javascript",
                "svg+xml",
            )
            assert await response.read() == (FOLDER / FILES[path]).read_bytes()


def test_the_policy_allows_nothing_but_these_files():
    policy = dict(rule.split(" ", 1) for rule in HEADERS["Content-Security-Policy"].split("; "))
    ours = {name for name, value in policy.items() if value == "'self'"}
    assert ours == {"script-src", "style-src", "img-src", "connect-src"}
    nothing = {name for name, value in policy.items() if value == "'none'"}
    assert nothing == {"default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert (HEADERS["X-Content-Type-Options"], HEADERS["Referrer-Policy"]) == (
        "nosniff",
        "no-referrer",
    )


async def test_a_file_that_has_not_changed_is_not_sent_again(shut, http):
    async with http.get(shut) as response:
        tag = response.headers["ETag"]
    for given, status in ((tag, 304), (f"W/{tag}", 304), ('"old"', 200)):
        async with http.get(shut, headers={"If-None-Match": given}) as response:
            assert (response.status, response.headers["ETag"]) == (status, tag)
            assert response.headers["Content-Security-Policy"]


async def test_each_policy_of_the_page_has_a_tag_of_its_own(shut, http):
    async with http.get(shut) as response:
        narrow = {"If-None-Match": response.headers["ETag"]}
    async with http.get(f"{shut}/?with=https://chat.example", headers=narrow) as response:
        assert response.status == 200, "of 304 a browser would keep the narrow policy"
        assert "https://chat.example" in response.headers["Content-Security-Policy"]
        wide = {"If-None-Match": response.headers["ETag"]}
    async with http.get(shut, headers=wide) as response:
        assert response.status == 200
    async with http.get(f"{shut}/?with=https://chat.example", headers=wide) as response:
        assert response.status == 304


@pytest.mark.parametrize(
    "path", ["/page", "/page/", "/page/index.html", "/page/routes.py", "/page/%2e%2e/app.py"]
)
async def test_nothing_else_is_open(shut, http, path):
    async with http.get(shut + path) as response:
        assert response.status == 401


def test_every_file_is_served_and_every_module_is_used():
    assert {file.name for file in SOURCES} == set(FILES.values())
    text = "".join(file.read_text() for file in SOURCES)
    assert set(re.findall(r'"(?:\./|page/)([\w.]+)"', text)) == set(FILES.values()) - {"index.html"}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_nothing_is_loaded_from_elsewhere(file):
    urls = re.findall(r"https?://[\w.]+", file.read_text())
    assert set(urls) <= {"http://www.w3.org"}, "the name of SVG, which nobody loads"


def test_scripts_and_styles_are_never_inline():
    html = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script\b[^>]*>(.*?)</script>", html, re.DOTALL) == [""]
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", html)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_text_never_becomes_html_or_code(file):
    ways = r"(inner|outer|set|Adjacent)HTML|DOMParser|srcdoc|document\.write|\beval\b|new Function"
    assert not re.search(ways, file.read_text())


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_what_outlives_the_tab_is_in_three_files_that_ask_first(file):
    text = file.read_text()
    assert not re.search(r"document\.cookie|indexedDB", text)
    assert file.name in ("addresses.js", "history.js", "settings.js") or "localStorage" not in text


def test_the_page_weighs_little():
    assert sum(file.stat().st_size for file in SOURCES) <= 118_000


# -- contrast -------------------------------------------------------------------------------------

INKS = ["ink", "faint", "mark", "bad"]
PAPERS = ["paper", "band"]
PAIRS = [(ink, paper) for ink in INKS for paper in PAPERS] + [("on-mark", "mark"), ("ink", "soft")]
SHAPES = [(shape, "paper") for shape in ("field", "mark", "bad", "queue", "prefill", "decode")]


def colours(scheme: str) -> dict[str, str]:
    light, dark = re.findall(r":root \{(.*?)\}", (FOLDER / "page.css").read_text(), re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#\w{6});", {"light": light, "dark": dark}[scheme]))


def luminance(colour: str) -> float:
    """Of WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_shapes_stand_out_in_both_colour_schemes(scheme):
    of = colours(scheme)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    weak = {(a, b) for a, b in PAIRS if contrast(of[a], of[b]) < 4.5}
    weak |= {(a, b) for a, b in SHAPES if contrast(of[a], of[b]) < 3}
    assert not weak
