"""Client libraries and command-line programs that ask once: how each is started.

A library is driven by a small program in `programs/`, which prints a line for each thing that it
tried and ends with an error where one failed. A program of its own is driven by a list of commands.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.clients.agents import Place
from tools.clients.script import HELLO

__all__ = ["LIBRARIES", "Library"]

PROGRAMS = Path(__file__).parent / "programs"

Lines = Callable[[Place], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Library:
    """Client without a session."""

    name: str
    packages: tuple[str, ...]
    commands: Callable[[Place], Sequence[Sequence[str]]]
    shows: str = ""
    """What each command must print; empty: it only has to end well."""
    index: str = "python"
    files: Lines = lambda place: {}
    """Its settings, by path below its home."""
    variables: Lines = lambda place: {}
    is_big: bool = False
    """Whether the continuous integration runs it."""
    provokes: str = ""
    """Words of a refusal that it provokes, to see what becomes of it; empty: it provokes none."""


def _python(program: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    file = str(PROGRAMS / f"{program}.py")
    return lambda place: [[place.client.program("python"), file, place.url, place.model]]


def _node(program: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    """Node looks for packages beside the program: it is given a copy there."""
    text = (PROGRAMS / f"{program}.mjs").read_text(encoding="utf-8")

    def commands(place: Place) -> Sequence[Sequence[str]]:
        copy = place.client.folder / f"{program}.mjs"
        copy.write_text(text, encoding="utf-8")
        return [[place.client.program("node"), str(copy), place.url, place.model]]

    return commands


def _llm_settings(place: Place) -> Mapping[str, str]:
    model = {
        "model_id": "local",
        "model_name": place.model,
        "api_base": f"{place.url}/v1",
        "supports_tools": "true",
        "supports_schema": "true",
    }
    lines = "\n  ".join(f"{name}: {value}" for name, value in model.items())
    return {"llm/extra-openai-models.yaml": f"- {lines}\n"}


def _llm(place: Place) -> Sequence[Sequence[str]]:
    program = [place.client.program("llm"), "-m", "local"]
    return [
        [*program, "How warm is it in Oldford?"],
        [*program, "--no-stream", "How warm is it in Oldford?"],
        [*program, "-c", "And how warm is that?"],
    ]


def _aider(place: Place) -> Sequence[Sequence[str]]:
    options = ["--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings"]
    options += ["--no-gitignore", "--analytics-disable", "--map-tokens", "0"]
    program = [place.client.program("aider"), *options, "--model", f"openai/{place.model}"]
    return [[*program, "--message", "How warm is it in Oldford?"]]


def _lm_eval(place: Place) -> Sequence[Sequence[str]]:
    model = f"model={place.model},base_url={place.url}/v1/chat/completions,num_concurrent=2"
    task = ["--include_path", str(PROGRAMS / "lm_eval_task"), "--tasks", "towns", "--limit", "4"]
    program = [place.client.program("lm_eval"), "run", "--model", "local-chat-completions"]
    return [[*program, "--model_args", model, "--apply_chat_template", *task]]


def _inspect(place: Place) -> Sequence[Sequence[str]]:
    program = [place.client.program("inspect"), "eval", str(PROGRAMS / "inspect_task.py")]
    return [[*program, "--model", f"openai-api/molink/{place.model}", "--display", "plain"]]


OPENAI_VARIABLES: Lines = lambda place: {  # noqa: E731
    "OPENAI_BASE_URL": f"{place.url}/v1",
    "OPENAI_API_BASE": f"{place.url}/v1",
    "OPENAI_API_KEY": "none",
}

LIBRARIES = (
    Library("openai-python", ("openai==3.57.0",), _python("openai_sdk"), is_big=True),
    Library("anthropic-python", ("anthropic==2.14.0",), _python("anthropic_sdk")),
    Library("openai-node", ("openai@7.59.0", "zod@4"), _node("openai_sdk"), index="npm"),
    Library("anthropic-node", ("@anthropic-ai/sdk@1.14.0",), _node("anthropic_sdk"), index="npm"),
    Library(
        "vercel-ai",
        (
            *("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "@ai-sdk/openai@4.0.118"),
            *("@ai-sdk/anthropic@4.0.105", "zod@4"),
        ),
        _node("vercel_ai"),
        index="npm",
    ),
    Library(
        "litellm",
        ("litellm==1.110.2",),
        _python("litellm_sdk"),
        provokes="maximum context length is",
    ),
    Library("langchain", ("langchain-openai==1.7.4",), _python("langchain_sdk")),
    Library("llama-index", ("llama-index-llms-openai-like==0.8.1",), _python("llama_index_sdk")),
    Library("instructor", ("instructor==1.17.0",), _python("instructor_sdk")),
    Library("pydantic-ai", ("pydantic-ai-slim[openai]==2.31.1",), _python("pydantic_ai_sdk")),
    Library("openai-agents", ("openai-agents==0.24.0",), _python("openai_agents_sdk")),
    Library("smolagents", ("smolagents[openai]==1.26.0",), _python("smolagents_sdk")),
    Library(
        "llm",
        ("llm==0.32.1",),
        _llm,
        shows=HELLO,
        files=_llm_settings,
        variables=lambda place: {
            **OPENAI_VARIABLES(place),
            "LLM_USER_PATH": str(place.home / "llm"),
        },
    ),
    Library("aider", ("aider-chat==0.86.2",), _aider, shows=HELLO, variables=OPENAI_VARIABLES),
    Library(
        "inspect",
        ("inspect-ai==0.3.285", "openai"),
        _inspect,
        shows="1.000",
        variables=lambda place: {
            "MOLINK_API_KEY": "none",
            "MOLINK_BASE_URL": f"{place.url}/v1",
        },
    ),
    Library(
        "lm-eval",
        ("lm_eval[api]==0.4.13",),
        _lm_eval,
        shows="exact_match",
        variables=OPENAI_VARIABLES,
    ),
)
