"""Steps as calls, in the schemas that agents really offer."""

from pathlib import Path

import pytest

from tools.clients.session import Create, Edit, Run
from tools.clients.tool_calls import call_of_step

ROOT = Path("/w")
TEXT = {"type": "string"}


def tool(name, required=(), **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@pytest.mark.parametrize(
    ("offered", "step", "arguments"),
    [
        (
            tool("Edit", file_path=TEXT, old_string=TEXT, new_string=TEXT, replace_all=TEXT),
            Edit("a", "b", "c"),
            {"file_path": "/w/a", "old_string": "b", "new_string": "c"},
        ),
        (
            tool(
                "edit",
                path=TEXT,
                edits={
                    "type": "array",
                    "items": {"type": "object", "properties": {"oldText": TEXT, "newText": TEXT}},
                },
            ),
            Edit("a", "b", "c"),
            {"path": "/w/a", "edits": [{"oldText": "b", "newText": "c"}]},
        ),
        (
            tool(
                "run_shell_command",
                ["is_background"],
                command=TEXT,
                is_background={"type": "boolean"},
            ),
            Run("ls"),
            {"command": "ls", "is_background": False},
        ),
        (
            tool("shell", command={"type": "array", "items": TEXT}),
            Run("ls"),
            {"command": ["bash", "-lc", "ls"]},
        ),
        (
            tool("run_commands", commands={"type": "array", "items": TEXT}),
            Run("ls"),
            {"commands": ["ls"]},
        ),
    ],
)
def test_parameters_are_filled_by_their_names(offered, step, arguments):
    assert call_of_step(step, [offered], ROOT).arguments == arguments


def test_who_has_a_shell_alone_writes_with_it():
    call = call_of_step(Create("x/y.txt", "it's\n"), [tool("exec_command", cmd=TEXT)], ROOT)
    assert call.arguments == {"cmd": "mkdir -p x && printf %s 'it'\"'\"'s\n' > x/y.txt"}
