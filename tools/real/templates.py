"""Which published chat templates' calls come back as the same calls.

`python -m tools.real.templates FOLDER` takes a folder of `*.jinja`, as llama.cpp keeps one. Each
template writes an earlier call into a prompt, and the parser that is found for this template reads
it back. Printed is a table with the parser and what came of it, and how many are the same.
"""

import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from molink.api.chat import ChatFormat, Conversation, Message, Tool, ToolCall
from molink.api.chat.prompt import PartReader, _rendered
from molink.api.errors import ApiError
from molink.config.parsers import NONE
from molink.models import DEMO_MODEL_DIR

__all__ = ["main", "result_of"]

ARGUMENTS = {"city": "Oldford", "days": 3}
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
WEATHER = Tool("get_weather", parameters={"type": "object", "properties": PROPERTIES})
CALL = ToolCall("abcdefghi", "get_weather", json.dumps(ARGUMENTS))
USER = Message("user", "Weather in Oldford?")
RESULT = Message("tool", "It rains.", tool_call_id=CALL.id)
SAME = "same"


def result_of(template: str) -> tuple[str, str]:
    """The parser of a template's calls, and `SAME` or why the call does not come back."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    tokenizer.chat_template = template
    form = ChatFormat.of(tokenizer)
    if not form.takes_tools:
        return form.tool_parser, "the template takes no tools"
    if form.tool_parser == NONE:
        return NONE, "no parser reads this format: 400 that says so"
    asked = Conversation((USER,), (WEATHER,))
    said = Message("assistant", "", tool_calls=(CALL,))
    try:
        before = _rendered(tokenizer, asked, form)
        after = _rendered(tokenizer, Conversation((USER, said, RESULT), (WEATHER,)), form)
    except ApiError as error:
        return form.tool_parser, str(error)
    written = _behind(before, after).partition(RESULT.text)[0]
    if WEATHER.name not in written:
        return form.tool_parser, "the template writes no calls"
    reply = PartReader(form.reader(asked, ""), asked).whole(written, "stop")
    known = [call for call in reply.tool_calls if call.name != "assistant"]  # Harmony's results.
    found = [(call.name, _value(call.arguments)) for call in known]
    is_same = found == [(WEATHER.name, ARGUMENTS)]
    return form.tool_parser, SAME if is_same else f"{found} of {written!r}"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _behind(before: str, after: str) -> str:
    """What `after` has more than `before`, from the beginning of a mark that both share in part."""
    same = (one == other for one, other in zip(before, after, strict=False))
    count = sum(takewhile(bool, same))
    begun = after.rfind("<", 0, count)
    return after[begun if begun > after.rfind(">", 0, count) else count :]


def main(folder: str) -> None:
    """Print which templates read back their own calls, and why others do not."""
    paths, same = sorted(Path(folder).glob("*.jinja")), 0
    for path in paths:
        parser, result = result_of(path.read_text())
        same += result == SAME
        print(f"{path.stem:58} {parser:16} {result}")
    print(f"{same} of {len(paths)} the same")


if __name__ == "__main__":
    main(sys.argv[1])
