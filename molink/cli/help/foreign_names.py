"""Names that other programs have for things, with one sentence on what they are called here.

People come from vLLM, Ollama and llama.cpp and type what their fingers know. An alias for each was
rejected: most of these options mean something else here, or nothing, and a command that takes them
and does something else is worse than a sentence.
"""

from collections.abc import Iterable

SAME_WORDS = {"ls": "status", "ps": "status"}
"""Words of other programs for a command of ours that does the same; help does not show them."""

WORDS = {
    "run": "`molink serve MODEL` serves a model on this PC, and `molink chat` talks with it.",
    "start": "`molink serve MODEL` serves on this PC, `molink up MODEL` over PCs that join.",
    "server": "`molink serve MODEL` serves on this PC, `molink up MODEL` over PCs that join.",
    "stop": "Ctrl-C in its terminal ends a server in order; so does SIGTERM.",
    "list": "`molink status` shows what a server serves, `molink node list` the PCs that joined.",
    "show": "`molink status` shows what a server serves, `molink dashboard` all of it, live.",
    "download": "`molink pull HUB-ID` fetches a model; `molink serve HUB-ID` does so by itself.",
    "convert": "`molink import FILE --out FOLDER` makes a folder of a GGUF file.",
    "quantize": "`molink import FOLDER --weights int4 --out FOLDER` rounds plain weights.",
    "join": "A PC joins by `molink agent join INVITE`; `molink invite` prints one.",
    "leave": "A PC leaves by `molink agent leave`.",
    "worker": "A PC lends itself by `molink agent join INVITE`.",
    "ask": "`molink generate PROMPT` continues a text, `molink chat` talks.",
    "complete": "`molink generate PROMPT` continues a text, `molink chat` talks.",
    "nodes": "`molink node list` shows the PCs that joined.",
    "keys": "`molink key list` shows the keys, `molink key create` makes one.",
    "invites": "`molink invite list` shows the invites, `molink invite` makes one.",
    "update": "`molink upgrade` installs the newest release.",
    "top": "`molink dashboard` shows the cluster live.",
    "version": "`molink --version` says it.",
    "help": "`molink --help` lists the commands, `molink COMMAND --help` explains one.",
}

_SPLIT = "A model is split by layers here: `molink serve MODEL --nodes N`, or agents that join."
_CARDS = (
    "`molink serve --device cuda:N` says which card; a PC with several lends all of them by "
    "`molink agent join INVITE --device auto`."
)
_OFFLOAD = (
    "There is no offload of some layers: a stage lies on its --device whole, and --nodes N splits "
    "the model."
)
_ROUNDED = (
    "Weights are served as the checkpoint has them: `molink import FOLDER --weights int4 --out "
    "FOLDER` rounds plain ones first."
)
_MEMORY = (
    "A stage takes the memory that its card has free, and --kv-tokens N bounds its cache; an owner "
    "bounds a PC by `molink agent set`."
)
_LENGTH = "The longest prompt and answer together are --max-model-len N."
_KEYS = "A server's keys are made by `molink key create`; a command takes one by --key."
_BATCH = "Requests join and leave every round; --kv-tokens N bounds how many fit."
_ONE_MODEL = "A server has one model, so requests need not name it: leave --model out."
_QUIET = "What happens is said anyhow; --log-format json says more, --quiet shows no progress."

OPTIONS = {
    **dict.fromkeys(
        ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--tp", "--pp"), _SPLIT
    ),
    **dict.fromkeys(("--data-parallel-size", "-dp"), _SPLIT),
    **dict.fromkeys(("--gpus", "--gpu", "--num-gpus", "--main-gpu", "--tensor-split"), _CARDS),
    **dict.fromkeys(("-ngl", "--n-gpu-layers", "--gpu-layers", "--cpu-offload-gb"), _OFFLOAD),
    **dict.fromkeys(("--quantization", "-q", "--quantize", "--load-format", "--weights"), _ROUNDED),
    **dict.fromkeys(("--gpu-memory-utilization", "--swap-space"), _MEMORY),
    **dict.fromkeys(("--ctx-size", "-c", "--num-ctx", "--context-length", "--max-length"), _LENGTH),
    **dict.fromkeys(("--api-key", "--token", "-k"), _KEYS),
    **dict.fromkeys(("--max-num-seqs", "--parallel", "-np", "--batch-size", "-b"), _BATCH),
    **dict.fromkeys(("-m", "--model"), _ONE_MODEL),
    **dict.fromkeys(("-v", "--verbose", "--debug"), _QUIET),
    "--max-parallel-requests": "`molink key create --concurrency N` bounds the requests of a key.",
    "--kv-cache-dtype": "The format of KV is --kv auto or int8.",
    "--cache-type-k": "The format of KV is --kv auto or int8.",
    "--enable-prefix-caching": "Prefixes are cached anyhow; --no-prefix-cache turns that off.",
    "--enable-chunked-prefill": "Prompts are cut anyhow; --span-tokens says into how many tokens.",
    "--speculative-model": "A model that drafts is named by --drafter.",
    "--speculative-config": "A model that drafts is named by --drafter.",
    "--draft-model": "A model that drafts is named by --drafter.",
    "-md": "A model that drafts is named by --drafter.",
    "--enable-auto-tool-choice": "Tools are always there; --tool-parser says how they are called.",
    "--tool-call-parser": "How a model calls tools is --tool-parser, and found by itself.",
    "--ssl-certfile": "HTTPS is --api-tls, with a file of yours --api-tls-cert and --api-tls-key.",
    "--ssl-keyfile": "HTTPS is --api-tls, with a file of yours --api-tls-cert and --api-tls-key.",
    "--allowed-origins": "Origins of web pages are allowed by --cors-origin.",
    "--n-predict": "The longest answer is --max-tokens.",
    "-n": "The longest answer is --max-tokens; stages of a server are --nodes.",
    "-t": "Threads of a stage are --threads.",
    "-p": "A port is --port; a prompt is an argument: `molink generate PROMPT`.",
    "--host": "A client takes the server's address by --url, or from $MOLINK_URL.",
    "--port": "A client takes the server's address by --url, or from $MOLINK_URL.",
    "--base-url": "A client takes the server's address by --url, or from $MOLINK_URL.",
    "--trust-remote-code": "No code from a checkpoint is run, ever: leave it out.",
}
"""Sentences by option; what a command has itself never comes here."""


def foreign_word(name: str) -> str | None:
    """What is said of a word that is a command elsewhere; None: of none that is known."""
    sentence = WORDS.get(name)
    return sentence and f"There is no `molink {name}`. {sentence}"


def foreign_option(refused: str, typed: Iterable[str]) -> str | None:
    """What is said of an option that the command lacks; None: of none that is known.

    `refused` is what a parser made of it, which is only `-n` where `-ngl` was `typed`.
    """
    words = [word.partition("=")[0] for word in typed]
    short = [word for word in words if len(refused) == 2 and word.startswith(refused)]
    name = next((word for word in short if word in OPTIONS), refused)
    sentence = OPTIONS.get(name)
    return sentence and f"There is no {name} here. {sentence}"
