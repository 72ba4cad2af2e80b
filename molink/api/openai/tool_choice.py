"""Choice among tools, as OpenAI's two APIs write it: within a box in chats, flat in responses."""

from collections.abc import Iterable, Mapping
from typing import Any

from molink.api.chat.conversation import AUTO, Tool, ToolChoice
from molink.api.errors import ApiError


def joined_name(name: str, namespace: Any = None) -> str:
    """The name under which the model knows a tool, which may be one of a namespace."""
    return f"{namespace.removesuffix('__')}__{name}" if isinstance(namespace, str) else name


def chosen(tools: tuple[Tool, ...], given: Any) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Tools that a choice leaves, and the choice that is made of them. Raises ApiError for a choice
    that is none."""
    match _unboxed(given):
        case None | "" | "auto" | {"type": "auto"}:
            return tools, AUTO
        case {} as nothing if not nothing:
            return tools, AUTO
        case "any" | "required" | {"type": "any" | "required"}:
            return tools, ToolChoice("required")
        case "none" | {"type": "none"}:
            return tools, ToolChoice("none")
        case {"mode": "auto" | "required" as mode, "tools": list(allowed)}:
            names = {_name(_unboxed(one), tools) for one in allowed}
            return tuple(tool for tool in tools if tool.name in names), ToolChoice(mode)
        case {"name": str()} as named:
            return tools, ToolChoice("named", _name(named, tools))
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


def _name(given: Any, tools: Iterable[Tool]) -> str:
    """The name of a tool as the model knows it; where one alone has it, without its namespace."""
    name = given.get("name") if isinstance(given, Mapping) else None
    if not isinstance(name, str):
        return ""
    name = joined_name(name, given.get("namespace"))
    known = [tool.name for tool in tools]
    ends = [one for one in known if one.endswith(f"__{name}")]
    return ends[0] if name not in known and len(ends) == 1 else name
