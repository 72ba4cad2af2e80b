from dataclasses import replace
from html.parser import HTMLParser

import pytest

from molink_sim.report.page import Picture, Section, write_page, write_run_page
from molink_sim.report.tables import Table

VOID = {"meta", "img"}


class Checker(HTMLParser):
    """Tags are closed in their order; what is loaded from where is kept."""

    def __init__(self):
        super().__init__()
        self.open, self.sources, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data.strip())


def check(path):
    text, checker = path.read_text(), Checker()
    checker.feed(text)
    assert checker.open == []
    assert all(one.startswith(("#", "data:image/png;base64,")) for one in checker.sources)
    assert "<script" not in text and "@import" not in text and "url(" not in text
    return checker


def test_a_page_needs_nothing_else(tmp_path):
    (tmp_path / "a.png").write_bytes(b"picture")
    table = Table("<i>", ["a", "b"], [["1 < 2", "&"]])
    picture = Picture(tmp_path / "a.png", 'so "wide"')
    sections = [Section("One", "text", [table], [picture]), Section("Two & more")]
    write_page(tmp_path / "page.html", "<Title>", sections)
    found = check(tmp_path / "page.html")
    for words in ("<Title>", "1 < 2", "<i>", "Two & more", 'so "wide"'):
        assert words in found.words
    assert found.sources == ["#s1", "#s2", "data:image/png;base64,cGljdHVyZQ=="]


def test_the_page_of_a_run(tmp_path, outcome_of):
    pytest.importorskip("matplotlib")
    write_run_page(tmp_path / "a.html", outcome_of(), title="A run", settings={"seed": 0})
    found = check(tmp_path / "a.html")
    assert {"What users felt", "Some seconds of it", "ring 0 link 2", "seed"} <= set(found.words)
    write_run_page(tmp_path / "b.html", outcome_of(), title="A run", settings={"seed": 0})
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_run_without_a_timeline_has_no_gantt(tmp_path, outcome_of):
    pytest.importorskip("matplotlib")
    outcome = replace(outcome_of(), timeline=(), requests=())
    write_run_page(tmp_path / "a.html", outcome, title="Nothing", settings={})
    assert "Some seconds of it" not in check(tmp_path / "a.html").words
