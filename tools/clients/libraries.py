"""Client libraries and command-line programs that ask once: how each is started.

A library is driven by a small program in `programs/`, which prints a line for each thing that it
tried and ends with an error where one failed. A program of its own is driven by a list of commands.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.clients.agents import Place
from tools.clients.script import EDITED, HELLO

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


def _python(program: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    file = str(PROGRAMS / "python" / f"{program}_program.py")
    return lambda place: [[place.client.program("python"), file, place.url, place.model]]


def _node(program: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    """Node looks for packages beside the program: it is given a copy there."""

    def commands(place: Place) -> Sequence[Sequence[str]]:
        for name in ("asked.mjs", f"{program}_program.mjs"):
            copy = place.client.folder / name
            copy.write_text((PROGRAMS / "node" / name).read_text(encoding="utf-8"), "utf-8")
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
    """A question, and a file that it writes by a block in the answer."""
    options = ["--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings"]
    options += ["--no-gitignore", "--analytics-disable", "--map-tokens", "0"]
    program = [place.client.program("aider"), *options, "--model", f"openai/{place.model}"]
    return [
        [*program, "--chat-mode", "ask", "--message", "How warm is it in Oldford?"],
        [*program, "--edit-format", "diff", "--message", "Note how warm it is."],
        ["cat", EDITED],
    ]


def _shell_gpt(place: Place) -> Sequence[Sequence[str]]:
    program = [place.client.program("sgpt"), "--no-functions"]
    return [
        [*program, "How warm is it in Oldford?"],
        [*program, "--no-cache", "--chat", "towns", "How warm is it in Oldford?"],
        [*program, "--no-cache", "--chat", "towns", "And how warm is that?"],
    ]


def _task(name: str, place: Place) -> str:
    """The text of a task file that names where it and MoLink are."""
    text = (PROGRAMS / "tasks" / name).read_text(encoding="utf-8")
    towns = str(PROGRAMS / "tasks" / "towns.jsonl")
    text = text.replace("towns.jsonl", towns)
    return text.replace("MODEL", place.model).replace("URL", place.url)


def _tokenizer() -> Mapping[str, str]:
    """Files of a tokenizer of words, for programs that count tokens by themselves."""
    model = {"type": "WordLevel", "vocab": {"?": 0, "Oldford": 1}, "unk_token": "?"}
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "?", "eos_token": "?"}
    return {
        "tokenizer/tokenizer.json": json.dumps({**tokenizer, "added_tokens": []}),
        "tokenizer/tokenizer_config.json": json.dumps(kind),
    }


def _lm_eval(place: Place) -> Sequence[Sequence[str]]:
    tasks = ["--include_path", str(place.home / "tasks"), "--tasks"]
    program = [place.client.program("lm_eval"), "run", "--model"]
    chat = f"model={place.model},base_url={place.url}/v1/chat/completions,num_concurrent=2"
    whole = f"model={place.model},base_url={place.url}/v1/completions,tokenizer_backend=huggingface"
    whole += f",tokenizer={place.home / 'tokenizer'}"
    chat_option = "--apply_chat_template"
    return [
        [*program, "local-chat-completions", *tasks, "towns", "--model_args", chat, chat_option],
        [*program, "local-completions", *tasks, "towns,towns_choice", "--model_args", whole],
    ]


def _inspect(place: Place) -> Sequence[Sequence[str]]:
    """It takes no task by an absolute path, so it is started where the task is."""
    program = ["env", "-C", str(PROGRAMS / "tasks"), place.client.program("inspect")]
    options = ["--log-dir", str(place.work), "--display", "plain"]
    model = f"openai-api/molink/{place.model}"
    return [[*program, "eval", "inspect_task.py", "--model", model, *options]]


def _promptfoo(place: Place) -> Sequence[Sequence[str]]:
    settings = str(place.home / "promptfoo.yaml")
    return [[place.client.program("promptfoo"), "eval", "-c", settings, "--no-cache"]]


def _guidellm(place: Place) -> Sequence[Sequence[str]]:
    program = [place.client.program("guidellm"), "run"]
    return [
        [
            *program,
            *("--backend", f"kind=openai_http,target={place.url},model={place.model}"),
            *("--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=3"),
            *("--tokenizer", f"kind=hf_auto,model={place.home / 'tokenizer'}"),
            *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8"),
        ]
    ]


TORCH = "torch==2.13.0"
"""MoLink's own version, so that pip takes a wheel without CUDA where it is told of one."""

OPENAI_VARIABLES: Lines = lambda place: {  # noqa: E731
    "OPENAI_BASE_URL": f"{place.url}/v1",
    "OPENAI_API_BASE": f"{place.url}/v1",
    "OPENAI_API_KEY": "none",
}

LIBRARIES = (
    Library("openai-python", ("openai==3.57.0",), _python("openai"), is_big=True),
    Library("anthropic-python", ("anthropic==2.14.0",), _python("anthropic")),
    Library("openai-node", ("openai@7.59.0", "zod@4"), _node("openai"), index="npm"),
    Library("anthropic-node", ("@anthropic-ai/sdk@1.14.0",), _node("anthropic"), index="npm"),
    Library(
        "vercel-ai",
        (
            *("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "@ai-sdk/openai@4.0.118"),
            *("@ai-sdk/anthropic@4.0.105", "zod@4"),
        ),
        _node("vercel_ai"),
        index="npm",
    ),
    Library("litellm", ("litellm==1.110.2",), _python("litellm")),
    Library(
        "langchain",
        ("langchain-openai==1.7.4", "langchain-anthropic==1.7.10"),
        _python("langchain"),
    ),
    Library(
        "langchain-js",
        (
            "@langchain/openai@1.6.0",
            "@langchain/anthropic@1.5.11",
            "@langchain/core@1.4.0",
            "zod@4",
        ),
        _node("langchain"),
        index="npm",
    ),
    Library("llama-index", ("llama-index-llms-openai-like==0.8.1",), _python("llama_index")),
    Library("instructor", ("instructor==1.17.0",), _python("instructor")),
    Library("pydantic-ai", ("pydantic-ai-slim[openai]==2.31.1",), _python("pydantic_ai")),
    Library("openai-agents", ("openai-agents==0.24.0",), _python("openai_agents")),
    Library("smolagents", ("smolagents[openai]==1.26.0",), _python("smolagents")),
    Library("dspy", ("dspy==3.4.1",), _python("dspy")),
    Library("haystack", ("haystack-ai==3.4.1",), _python("haystack")),
    Library(
        "autogen",
        ("autogen-ext[openai]==0.7.5", "autogen-agentchat==0.7.5"),
        _python("autogen"),
    ),
    Library("semantic-kernel", ("semantic-kernel==1.45.0",), _python("semantic_kernel")),
    Library("outlines", ("outlines[openai]==1.3.3",), _python("outlines")),
    Library("mirascope", ("mirascope[openai,anthropic]==2.8.2",), _python("mirascope")),
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
        "shell-gpt",
        ("shell-gpt==1.5.1", "click"),
        _shell_gpt,
        shows=HELLO,
        variables=lambda place: {
            "API_BASE_URL": f"{place.url}/v1",
            "DEFAULT_MODEL": place.model,
            "OPENAI_API_KEY": "none",
            "USE_LITELLM": "false",
        },
    ),
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
        ("lm_eval[api]==0.4.13", "transformers"),
        _lm_eval,
        shows="towns",
        files=lambda place: {
            **_tokenizer(),
            **{f"tasks/{name}": _task(name, place) for name in ("towns.yaml", "towns_choice.yaml")},
        },
        variables=OPENAI_VARIABLES,
    ),
    Library("guidellm", ("guidellm==0.8.1", TORCH), _guidellm, files=lambda place: _tokenizer()),
    Library(
        "promptfoo",
        ("promptfoo@0.123.1",),
        _promptfoo,
        shows="4 passed",
        index="npm",
        files=lambda place: {"promptfoo.yaml": _task("promptfoo.yaml", place)},
        variables=lambda place: {"PROMPTFOO_DISABLE_TELEMETRY": "1"},
    ),
    Library("open-webui", ("open-webui==0.12.4", TORCH), _python("open_webui")),
)
