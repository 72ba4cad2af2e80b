"""A link of a page says what is behind it in words, not as the name of a file."""

import re

import pytest

from tests.docs_site.pages import PAGES, ROOT

READ = [page for page in (*PAGES, ROOT / "CONTRIBUTING.md") if page.parent.name != "decisions"]
NAME_OF_A_FILE = re.compile(r"\[[^\]`]*(?:\.md|docs/[\w/]*)\]\([^)]*\)")


@pytest.mark.parametrize("page", READ, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_are_called_by_their_pages_titles(page):
    assert NAME_OF_A_FILE.findall(page.read_text(encoding="utf-8")) == []


def test_the_name_of_a_file_would_be_noticed():
    assert NAME_OF_A_FILE.findall("[docs/keys.md](docs/keys.md#a)") == [
        "[docs/keys.md](docs/keys.md#a)"
    ]
    assert NAME_OF_A_FILE.findall("[x](y.md), [docs/papers](docs/papers/README.md)")
    assert NAME_OF_A_FILE.findall("[keys and TLS](keys.md), [`a.md`](a.md)") == []
