"""What published models are asked: prose, code, many scripts, emoji, chats, and one long prompt.

The text for the loss, and the long prompt, are pages and code of this checkout: real text that is
there without a download, the same for all who are compared in a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CHATS", "LONG_TOKENS", "PROMPTS", "Chat", "long_text", "loss_text"]

ROOT = Path(__file__).parents[2]

LOSS_BYTES = 20_000
LOSS_SOURCES = {"docs/operating.md": 6_000, "docs/architecture.md": 9_000, "molink/tasks.py": 5_000}
"""Files, and how much of each: prose, tables and code."""

LONG_TOKENS = 4_000
LONG_SOURCES = ("docs/architecture.md", "docs/operating.md", "docs/scheduling.md")

PROMPTS: Mapping[str, str] = {
    "English, a story": "The lighthouse keeper had not spoken to anyone for three weeks when",
    "English, facts": "The boiling point of water at sea level is 100 degrees Celsius. On Everest",
    "English, a list": "Packing list for a week in the mountains:\n1. Rain jacket\n2.",
    "English, odd spaces": "  Dear   Sir or Madam,\n\n\n\tI write to you   about",
    "Python": "def merge_sorted(left: list[int], right: list[int]) -> list[int]:\n    ",
    "C": "#include <stdio.h>\n\nint main(int argc, char **argv) {\n\tfor (int i = 0; ",
    "JSON": '{"name": "Ada", "born": 1815, "tags": ["mathematics", "',
    "SQL": "SELECT customer.name, COUNT(*) AS orders\nFROM customer JOIN ",
    "Chinese": "长城是中国古代的伟大建筑之一，它的历史可以追溯到",
    "Japanese": "吾輩は猫である。名前はまだ無い。どこで生れたか",
    "Korean": "옛날 옛적에 깊은 산속에 호랑이 한 마리가",
    "Arabic": "كان يا ما كان في قديم الزمان، كان هناك ملك",
    "Hindi": "भारत की राजधानी नई दिल्ली है और उसका सबसे बड़ा शहर",
    "Russian": "Все счастливые семьи похожи друг на друга, каждая",
    "Greek and accents": "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας; Zürich, naïve, Đà Nẵng:",
    "Thai": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยและ",
    "emoji": "Best emojis for a birthday: 🎂🎉🥳👩‍👩‍👧‍👦🇫🇷 and also ",
}


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that is put through the model's own template."""

    name: str
    messages: tuple[Mapping[str, str], ...]


CHATS = (
    Chat(
        "chat, one turn",
        ({"role": "user", "content": "Write a haiku about rain, then explain it 🌧️."},),
    ),
    Chat(
        "chat, three turns",
        (
            {"role": "user", "content": "What is 17 * 23?"},
            {"role": "assistant", "content": "17 * 23 = 391."},
            {"role": "user", "content": "And in hexadecimal? Show the Python for it."},
        ),
    ),
)
"""With these, the prompts above and the long one there are twenty."""


def loss_text(bytes_max: int = LOSS_BYTES) -> str:
    """Real text of some 20 KB, or less of each of its parts."""
    share = bytes_max / LOSS_BYTES
    parts = (_start_of(name, int(size * share)) for name, size in LOSS_SOURCES.items())
    return "\n".join(parts)


def _start_of(name: str, size: int) -> str:
    return (ROOT / name).read_bytes()[:size].decode(errors="ignore")


def long_text() -> str:
    """Text of more than 4,000 tokens, to be cut to so many."""
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in LONG_SOURCES)
