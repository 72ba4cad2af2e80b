"""The type of a JSON object whose fields no type of ours names.

It is for what others define: the body that a client sends, a JSON schema, a model's config.json,
the answer of a server of another version. A record of our own is a dataclass or a `TypedDict`
instead, whose fields say what is in it.
"""

from typing import Any

JsonObject = dict[str, Any]
"""Fields of a JSON object by name; what reads one checks what it finds."""
