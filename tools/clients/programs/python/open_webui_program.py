"""Open WebUI's back end: its own API in front of MoLink, asked as its page asks it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from asked import ASK, LONG, MODEL, TOO_LONG, URL, tried

STARTS_WITHIN_S = 300
SETTINGS = {
    "OPENAI_API_BASE_URL": f"{URL}/v1",
    "OPENAI_API_KEY": "none",
    "ENABLE_OLLAMA_API": "false",
    "WEBUI_AUTH": "false",
    "DATA_DIR": str(Path.home()),
    "OFFLINE_MODE": "true",
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
}
"""Its own settings: where MoLink is, nobody has to log in, nothing is fetched from a hub."""

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
token = ""


def asked(path, body=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def asked_a_model(text, **fields):
    messages = [{"role": "user", "content": text}]
    return asked("/api/chat/completions", {"model": MODEL, "messages": messages, **fields})


def wait():
    for _ in range(STARTS_WITHIN_S):
        try:
            return asked("/health")
        except OSError:
            time.sleep(1)
    raise TimeoutError("it did not start")


program = Path(sys.executable).with_name("open-webui")
command = [program, "serve", "--host", "127.0.0.1", "--port", str(port)]
with subprocess.Popen(command, env={**os.environ, **SETTINGS}) as server:
    try:
        wait()
        token = json.loads(asked("/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
        models = json.loads(asked("/api/models"))["data"]
        tried("models", [one["id"] for one in models if one["id"] == MODEL])
        tried("chat", "21" in asked_a_model(ASK))
        lines = asked_a_model(ASK, stream=True).splitlines()
        deltas = [json.loads(one[6:]) for one in lines if one.startswith("data: {")]
        said = "".join(one["choices"][0]["delta"].get("content") or "" for one in deltas)
        tried("stream", "21" in said)
        try:
            said = asked_a_model(LONG)
        except urllib.error.HTTPError as error:
            said = error.read().decode()
        tried("too long", any(words in said for words in TOO_LONG))
    finally:
        server.terminate()
