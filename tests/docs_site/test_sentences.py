"""Sentences of the guides are short: whoever reads them has a PC to lend, not an evening.

A guide is README and each page of `docs/` but decisions, benchmarks and papers, which are records,
and the page of models, which a command writes. A sentence ends at a full stop, a question mark, or
with its block: a paragraph, an item of a list, a cell of a table. Code and links count one word for
each of their own in the text as it is shown; an inline code is one.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS_MAX = 25

GUIDES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/rooms").glob("*"),
    )
    if path.name != "models.md"
)

BLOCKS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=\|)|\n(?=#)|\n(?= {4})")
BULLET = re.compile(r"^\s*(?:[-*>]|\d+\.)\s*")
LEFT_OUT = re.compile(r"```.*?```|<!--.*?-->|<[^>]+>", re.DOTALL)


def sentences(text: str) -> Iterator[str]:
    """Each sentence of a page, without marks of Markdown."""
    for block in BLOCKS.split(LEFT_OUT.sub("", text)):
        if block.startswith(("    ", "#")):
            continue
        for part in block.strip("| \n").split(" | ") if block.startswith("|") else [block]:
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", part)
            shown = BULLET.sub("", re.sub(r"`[^`]*`", "X", shown))
            yield from re.split(r"(?<=[.!?])[\s*)_\"]+", " ".join(shown.split()))


def words(sentence: str) -> int:
    """How many words a sentence has; figures count."""
    return sum(re.search(r"\w", word) is not None for word in sentence.split())


@pytest.mark.parametrize("guide", GUIDES)
def test_no_sentence_of_a_guide_is_long(guide):
    long = [one for one in sentences((ROOT / guide).read_text()) if words(one) > WORDS_MAX]
    assert not long, f"{len(long)} sentences of {guide}: make two of each of {long}"


def test_sentences_are_found():
    page = "# A title\n\nOne [two](x.md) three.  Four `five six`.\n\n| 7 eight | nine |\n- ten\n"
    assert [words(one) for one in sentences(page)] == [3, 2, 2, 1, 1]
