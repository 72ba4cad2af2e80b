"""Coding agents: how each is pointed at MoLink, and started without a person.

The lines are those of `docs/clients.md`, with nothing beside them but what lets an agent use its
tools unasked: what works here works for who pastes them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.clients.cache import Installed

__all__ = ["AGENTS", "Agent", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one agent runs."""

    url: str
    """Of MoLink, without `/v1`."""
    model: str
    home: Path
    """Of its settings: nothing of the user's own is read or changed."""
    work: Path
    """The scratch folder."""
    client: Installed


Command = Callable[[Place, str], Sequence[str]]
"""Of a place and a prompt."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Agent that is run without a person."""

    name: str
    packages: tuple[str, ...]
    first: Command
    """Begins a session with a prompt..."""
    more: Command | None
    """...and goes on with it; None: that takes a person."""
    files: Callable[[Place], Mapping[str, str]] = lambda place: {}
    """Its settings, by path below its home."""
    variables: Callable[[Place], Mapping[str, str]] = lambda place: {}
    index: str = "npm"
    is_big: bool = False
    """Whether the continuous integration runs it."""
    setup: Sequence[Command] = ()
    """Commands before the first."""
    retries: bool = True
    """Whether it sends a request again whose answer broke off with an error."""


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


def _claude(place: Place, prompt: str, *options: str) -> Sequence[str]:
    allowed = ["--allowedTools", "Bash,Read,Edit,Write"]
    return [place.client.program("claude"), *options, "-p", prompt, *allowed]


CLAUDE_CODE = Agent(
    "claude-code",
    ("@anthropic-ai/claude-code@2.1.332",),
    first=_claude,
    more=lambda place, prompt: _claude(place, prompt, "--continue"),
    variables=lambda place: {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": place.model,
    },
    is_big=True,
)


def _codex_settings(place: Place) -> Mapping[str, str]:
    lines = [
        f'model = "{place.model}"',
        'model_provider = "molink"',
        "[model_providers.molink]",
        'name = "molink"',
        f'base_url = "{place.url}/v1"',
        'wire_api = "responses"',
    ]
    return {".codex/config.toml": "\n".join(lines) + "\n"}


CODEX_OPTIONS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")

CODEX = Agent(
    "codex",
    ("@openai/codex@0.171.0",),
    first=lambda place, prompt: [
        place.client.program("codex"),
        "exec",
        *CODEX_OPTIONS,
        prompt,
    ],
    more=lambda place, prompt: [
        place.client.program("codex"),
        "exec",
        *CODEX_OPTIONS,
        "resume",
        "--last",
        prompt,
    ],
    files=_codex_settings,
    is_big=True,
)


def _opencode_settings(place: Place) -> Mapping[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "MoLink",
        "options": {"baseURL": f"{place.url}/v1"},
        "models": {place.model: {"name": place.model}},
    }
    settings = {"provider": {"molink": provider}, "model": f"molink/{place.model}"}
    return {".config/opencode/opencode.json": _json(settings)}


OPENCODE = Agent(
    "opencode",
    ("opencode-ai@1.18.33",),
    first=lambda place, prompt: [place.client.program("opencode"), "run", prompt],
    more=lambda place, prompt: [place.client.program("opencode"), "run", "--continue", prompt],
    files=_opencode_settings,
    is_big=True,
)


def _qwen(place: Place, prompt: str, *options: str) -> Sequence[str]:
    return [place.client.program("qwen"), "--auth-type", "openai", "-y", *options, "-p", prompt]


QWEN_CODE = Agent(
    "qwen-code",
    ("@qwen-code/qwen-code@0.24.4",),
    first=_qwen,
    more=lambda place, prompt: _qwen(place, prompt, "--continue"),
    variables=lambda place: {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{place.url}/v1",
        "OPENAI_MODEL": place.model,
    },
)


def _continue_settings(place: Place) -> Mapping[str, str]:
    model = {
        "name": place.model,
        "provider": "openai",
        "model": place.model,
        "apiBase": f"{place.url}/v1",
        "apiKey": "none",
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
    }
    settings = {"name": "local", "version": "1.0.0", "schema": "v1", "models": [model]}
    return {"continue.yaml": _json(settings)}


def _cn(place: Place, prompt: str, *options: str) -> Sequence[str]:
    config = str(place.home / "continue.yaml")
    return [place.client.program("cn"), "--config", config, "--auto", *options, "-p", prompt]


CONTINUE = Agent(
    "continue",
    ("@continuedev/cli@1.5.47",),
    first=_cn,
    more=lambda place, prompt: _cn(place, prompt, "--resume"),
    files=_continue_settings,
)


def _pi_settings(place: Place) -> Mapping[str, str]:
    model = {"id": place.model, "contextWindow": 32768, "maxTokens": 4096}
    provider = {
        "baseUrl": f"{place.url}/v1",
        "api": "openai-completions",
        "apiKey": "none",
        "models": [model],
    }
    return {".pi/agent/models.json": _json({"providers": {"molink": provider}})}


def _pi(place: Place, prompt: str, *options: str) -> Sequence[str]:
    chosen = ["--provider", "molink", "--model", place.model]
    return [place.client.program("pi"), *chosen, *options, "-p", prompt]


PI = Agent(
    "pi",
    ("@mariozechner/pi-coding-agent@0.73.1",),
    first=_pi,
    more=lambda place, prompt: _pi(place, prompt, "--continue"),
    files=_pi_settings,
    retries=False,
)


def _cline_login(place: Place, _: str) -> Sequence[str]:
    login = ["auth", "-p", "openai-compatible", "-k", "none", "-m", place.model]
    return [place.client.program("cline"), *login, "-b", f"{place.url}/v1"]


def _cline(place: Place, prompt: str) -> Sequence[str]:
    chosen = ["-P", "openai-compatible", "-m", place.model]
    return [place.client.program("cline"), *chosen, prompt]


CLINE = Agent(
    "cline",
    ("cline@3.0.65",),
    first=_cline,
    more=None,
    setup=(_cline_login,),
    retries=False,
)

AGENTS = (CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE, CONTINUE, PI, CLINE)
