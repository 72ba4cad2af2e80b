"""Choice among tools, as OpenAI's two APIs write it: within a box in chats, flat in responses."""

from collections.abc import Mapping
from typing import Any

from molink.api.chat.conversation import AUTO, Tool, ToolChoice
from molink.api.errors import ApiError

__all__ = ["chosen", "joined_name"]


def joined_name(name: str, namespace: Any = None) -> str:
    """The name under which the model knows a tool, which may be one of a namespace."""
    return f"{namespace.removesuffix('__')}__{name}" if isinstance(namespace, str) else name


def chosen(tools: tuple[Tool, ...], given: Any) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that a choice leaves, and what is to be done with them. Raises ApiError for a
    choice that is none."""
    match _unboxed(given):
        case None | "" | "auto":
            return tools, AUTO
        case "none" | "required" as mode:
            return tools, ToolChoice(mode)
        case {"mode": "auto" | "required" as mode, "tools": list(allowed)}:
            names = {_name(_unboxed(one)) for one in allowed}
            return tuple(tool for tool in tools if tool.name in names), ToolChoice(mode)
        case {"name": str()} as named:
            return tools, ToolChoice("named", _name(named))
    raise ApiError(
        "'tool_choice' must be 'auto', 'none', 'required', a function or allowed tools: send "
        '{"type": "function", "function": {"name": ...}} for a function.',
        param="tool_choice",
    )


def _unboxed(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    box = given.get(str(given.get("type", "function")))
    return box if isinstance(box, Mapping) else given


def _name(given: Any) -> str:
    name = given.get("name") if isinstance(given, Mapping) else None
    return joined_name(name, given.get("namespace")) if isinstance(name, str) else ""
