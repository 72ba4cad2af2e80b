"""Layouts of calls, one for each family: what stands around names and arguments.

Readers find calls by these texts, and the grammar of a demanded call is made of them. White space
is as the models write it; readers take calls with less or more of it, too.
"""

from dataclasses import dataclass

NAME = "$NAME"
"""Stands for the tool's name."""


@dataclass(frozen=True, slots=True)
class JsonShape:
    """Layout of calls whose arguments are a JSON object: each is `open`, the object, `close`."""

    open: str
    """Text before the object, with `NAME` in it."""
    close: str = ""
    begin: str = ""
    """Text before the first call."""
    between: str = ""
    end: str = ""
    is_single: bool = False
    """Whether the model makes one call at a time."""


@dataclass(frozen=True, slots=True)
class TagShape:
    """Layout of calls whose arguments stand one by one between marks, strings as they are and
    everything else as JSON; `line_break` is written between the marks."""

    begin: str
    open: str
    """Text before the name; empty: the name follows `begin`."""
    name_end: str
    key: str
    """Text before an argument's name."""
    key_end: str
    value: str
    """Text before an argument's value; empty: the value follows `key_end`."""
    value_end: str
    close: str
    end: str = ""
    value_break: str = ""
    """Text on both sides of a value that does not belong to it."""
    line_break: str = "\n"
    json_key_end: str = ""
    """Text that stands for `key_end` before a value that is JSON; empty: the same."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that a reader looks for."""
        places = (self.begin, self.open, self.key, self.value, self.value_end, self.close, self.end)
        return tuple(mark for mark in places if mark)


CallShape = JsonShape | TagShape
