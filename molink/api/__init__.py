"""The REST API: HTTP in front of a `GenerationService`.

A request walks through four rooms. `body` reads its JSON, checks it against a model of `schemas`
and the tables of `fields`, and `mistakes` words what is wrong; `prompts` and `sampling` turn it
into token ids and `SamplingParams`; `sequences` runs one sequence for each choice and cancels all
of them when the client goes away; `generate`, `completions` and `chat` write the answer in their
dialect, whole or as server-sent events. Whatever goes wrong on the way becomes one sentence in
OpenAI's error shape (`errors`).

Checks happen once, at the way in. On the way out there are plain dicts and one `write` for each
event: a busy core sends hundreds of tokens a second through here.
"""

from molink.api.app import create_app
from molink.api.server import start_api

__all__ = ["create_app", "start_api"]
