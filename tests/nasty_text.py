"""Texts that somebody would send who wants another one's terminal."""

import unicodedata

from hypothesis import strategies as st

OBEYED = frozenset(
    character
    for character in map(chr, range(0x110000))
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    or unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF")
    or unicodedata.bidirectional(character) in ("LRI", "RLI", "FSI", "PDI")
)
"""By the tables of Unicode, not by ours."""

nasty_texts = st.lists(
    st.one_of(
        st.sampled_from(sorted(OBEYED)),
        st.sampled_from(
            ["\x1b[2J", "\x1b]0;t\x07", "\x1b]52;c;eA==\x1b\\", "\u202e", "[red]", "é"]
        ),
        st.text(max_size=5),
    ),
    max_size=6,
).map("".join)
