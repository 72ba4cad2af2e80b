"""Limits of a grammar's cost wherever one is compiled: the same at the API and at a ring's tail.

A grammar travels as text (`SamplingParams.grammar`), and is compiled twice: by the API's check, so
that a user hears at once what is wrong with it, and by the tail that follows it. Limits that differ
would let the API promise what a tail refuses. They are counted in the library's own steps and not
in seconds, so that a fast PC and a slow one agree.
"""

from llguidance import LLParserLimits

GRAMMAR_SYMBOLS_MAX = 100_000
"""Symbols in all productions: a fifth of the library's own limit, which takes most of a second to
compile."""

LEXER_STATES_MAX = 20_000
"""Most states of the lexer. Each takes 1 to 2 KB while a sequence runs; the library would let one
take 500 MB of a volunteer's PC. 500 properties that each have a pattern take 10,000.
"""


STEP_ITEMS_MAX = 20_000
"""Items of the parser in one mask: 16 ms of a slow core, and some hundred times what a schema
takes. The library would take 40 ms, beside which masks of others wait."""


def parser_limits() -> LLParserLimits:
    """The limits; what a grammar's text says is kept out of errors, which go to logs."""
    return LLParserLimits(
        max_grammar_size=GRAMMAR_SYMBOLS_MAX,
        max_lexer_states=LEXER_STATES_MAX,
        step_max_items=STEP_ITEMS_MAX,
        verbose_errors=False,
    )
