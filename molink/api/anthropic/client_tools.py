"""Tools of Anthropic's that a client runs, whose schemas only Anthropic's models know by heart.

A request names them by a type with a date (`bash_20250124`) and sends no schema, so other models
are shown these. Tools that need pictures (a computer's screen) or a server are not among them.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["CLIENT_TOOLS", "kind_of"]

_FILES = {
    "path": {"type": "string"},
    "file_text": {"type": "string", "description": "Whole text of a file to create."},
    "old_str": {"type": "string", "description": "Text to replace, which must be unique."},
    "new_str": {"type": "string"},
    "insert_line": {"type": "integer", "description": "Line behind which to insert."},
    "insert_text": {"type": "string"},
    "view_range": {"type": "array", "items": {"type": "integer"}},
}
_RENAMES = {"old_path": {"type": "string"}, "new_path": {"type": "string"}}


def _of_files(*more: str, **properties: Any) -> Mapping[str, Any]:
    commands = ["view", "create", "str_replace", "insert", *more]
    command = {"command": {"type": "string", "enum": commands}}
    return {"type": "object", "properties": command | properties, "required": ["command"]}


CLIENT_TOOLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bash": (
        "Run a command in a shell that stays open, or start the shell anew.",
        {
            "type": "object",
            "properties": {"command": {"type": "string"}, "restart": {"type": "boolean"}},
        },
    ),
    "text_editor": ("View, make and edit text files.", _of_files("undo_edit", **_FILES)),
    "memory": (
        "Keep notes in files below /memories, which last beyond this conversation.",
        _of_files("delete", "rename", **_FILES, **_RENAMES),
    ),
}
"""Description and argument schema of each tool type, the date of its name left off."""


def kind_of(type: str) -> str:
    """A tool's type without its date."""
    kind, _, date = type.rpartition("_")
    return kind if date.isdigit() else type
