"""The smallest agent: asks, does what is called for, and tells: `small_agent.py URL FAULT`."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

url, fault = sys.argv[1:3]
HISTORY = Path(".history.json")


def parameters(*names):
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
    }


def tool(name, *names):
    return {"type": "function", "function": {"name": name, "parameters": parameters(*names)}}


def run(command):
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return f"{done.returncode} {done.stdout} {done.stderr}"


def write(file_path, content):
    Path(file_path).parent.mkdir(parents=True, exist_ok=True)
    Path(file_path).write_text(content.upper() if fault == "shouts" else content)
    return "written"


def edit(file_path, old_string, new_string):
    file = Path(file_path)
    file.write_text(file.read_text().replace(old_string, new_string))
    return "replaced"


def ask(messages):
    body = {"messages": messages, "tools": TOOLS}
    if fault == "is refused":
        body["temperature"] = "hot"
    if fault == "asks too much":
        body["messages"] = [{"role": "user", "content": "garden " * 30_000}]
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


DOES = {
    "Bash": lambda command, description="": run(command),
    "Write": write,
    "Read": lambda file_path: Path(file_path).read_text(),
    "Edit": edit,
}
TOOLS = [
    tool("Bash", "command", "description"),
    tool("Write", "file_path", "content"),
    tool("Read", "file_path"),
    tool("Edit", "file_path", "old_string", "new_string"),
]
if fault == "has a shell alone":
    TOOLS = TOOLS[:1]

messages = json.loads(HISTORY.read_text()) if HISTORY.exists() else []
messages.append({"role": "user", "content": "go on"})
while True:
    try:
        message = ask(messages)
    except urllib.error.HTTPError as error:
        sys.exit(f"it was refused: {error.read().decode()}")
    messages.append(message)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        told = DOES[function["name"]](**json.loads(function["arguments"]))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
    if not message.get("tool_calls"):
        break
HISTORY.write_text(json.dumps([] if fault == "forgets" else messages))
print(messages[-1]["content"])
