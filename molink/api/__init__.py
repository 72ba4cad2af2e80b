"""The REST API: HTTP in front of a `GenerationService`.

A request is read in three steps. `body` parses its JSON, checks it against a model of `schemas` and
words the first mistake; `requests` turns it into token ids and `SamplingParams`; `answers`
generates one sequence for each choice, cancels all of them when the client goes away, and writes
events. Conversations go through `chat`: it finds in the model's text what it thinks, says and wants
called, whatever the dialect. `generate`, `openai` (completions, chat, responses), `anthropic`
(messages) and `vllm` (token ids) are the endpoints, each with its own shape of an answer. Whatever
goes wrong on the way becomes one sentence in the error shape of the API that was called (`errors`).

Checks happen once, when a request comes in. Answers are plain dicts and one `write` for each event:
a busy core sends hundreds of tokens a second through here.
"""

from molink.api.app import create_app
from molink.api.server import start_api

__all__ = ["create_app", "start_api"]
