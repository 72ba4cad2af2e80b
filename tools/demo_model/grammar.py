"""A small text grammar: rules in ``grammar/*.txt``, expanded with a seeded random source.

A file holds sections ``== name``, each with one alternative per line. In a line, ``[a|b]`` picks
one of the parts, ``<rule>`` puts in a line of another section and ``{slot}`` a word of the story.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "grammar"

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_RULE = re.compile(r"<(\w+)>")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])")
_SENTENCE = re.compile(r"(^|[.!?]\"? |\n)([a-z])")

Rules = dict[str, list[str]]
Slots = dict[str, str]


def load(name: str) -> Rules:
    """Read one grammar file into its sections."""
    rules: Rules = {}
    section: list[str] = []
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            section = rules.setdefault(line[3:].strip(), [])
        elif line.strip():
            section.append(line.strip())
    return rules


def _fill(text: str, slots: Slots) -> str:
    """Put in the slots; ``{He}`` is ``{he}`` with a capital."""

    def value(match: re.Match[str]) -> str:
        key = match[1]
        if key in slots:
            return slots[key]
        return slots[key.lower()].capitalize()

    return _SLOT.sub(value, text)


def expand(text: str, rng: random.Random, rules: Rules, slots: Slots) -> str:
    """Expand rules, choices and slots until none is left."""
    while True:
        before = text
        text = _RULE.sub(lambda match: rng.choice(rules[match[1]]), text)
        text = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), text)
        text = _fill(text, slots)
        if text == before:
            return text


def _capital(match: re.Match[str]) -> str:
    """Raise the first letter, unless a quotation goes on with ``said`` and the like."""
    return match[1] + match[2].upper()


def tidy(text: str, paragraph: str = "\n\n") -> str:
    """Paragraphs for ``/``, ``an`` before vowels and capitals at the start of sentences."""
    text = text.replace(" / ", paragraph)
    text = re.sub(r"([?!]),\"", r'\1"', text)
    text = re.sub(r"\.\"( [a-z])", r',"\1', text)
    text = _ARTICLE.sub(r"\1n ", text)
    text = re.sub(r"\b([Aa])n (?=(one|useful|user)\b)", r"\1 ", text)
    quote_end = re.compile(r"([!?]\" )([a-z])")
    held = quote_end.sub(lambda match: match[1] + "\0" + match[2], text)
    held = _SENTENCE.sub(_capital, held).replace("\0", "")
    return re.sub(r" +", " ", held).strip()
