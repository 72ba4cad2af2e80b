"""Tools in the words of other dialects: clients move from one to another and keep them."""

from typing import Any

__all__ = ["flat_tool"]


def flat_tool(value: Any) -> Any:
    """A tool without the box around its function, with its schema under `parameters`."""
    if not isinstance(value, dict):
        return value
    box = value.get("function")
    flat = (
        {name: one for name, one in value.items() if name != "function"} | box
        if isinstance(box, dict)
        else dict(value)
    )
    if flat.get("type", "") is None:
        del flat["type"]
    if "input_schema" in flat:
        flat["parameters"] = flat.pop("input_schema")
    return flat
