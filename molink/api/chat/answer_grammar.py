"""The sequences that answer a conversation, and the grammar of a whole answer: of the text that a
request asks for, or of the call that it demands."""

from dataclasses import replace

from aiohttp import web

from molink.api.callers import caller_of
from molink.api.chat.conversation import ToolChoice
from molink.api.chat.prompt import ChatPrompt
from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.api.grammars.checker import GrammarChecker
from molink.api.grammars.fields import GRAMMARS, Question, grammar_of
from molink.api.requests import generation_requests
from molink.api.schemas import SamplingBody
from molink.serving.grammar_check import GrammarQuestion
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink_scheduler.request import GRAMMAR_CHARS_MAX

TOOLS_ASKED_MAX = 64
"""Tools that are looked at one by one for the one at fault; others' questions wait meanwhile."""


async def chat_requests(
    request: web.Request,
    body: SamplingBody,
    card: ModelCard,
    prompt: ChatPrompt,
    max_tokens: int,
    *,
    also: Question | None = None,
    logprobs: int | None = None,
    choices: int = 1,
) -> list[GenerationRequest]:
    """One request for each answer to `prompt`; `also`: the grammar for which a field asks that only
    its endpoint has. Raises ApiError."""
    return generation_requests(
        prompt.token_ids,
        body,
        card,
        max_tokens=max_tokens,
        logprobs=logprobs,
        usual_priority=caller_of(request).priority,
        grammar=await _answer_grammar(request, body, card, prompt, also),
        choices=choices,
        skip_special_tokens=prompt.skip_special_tokens,
        quiet=prompt.quiet,
        continues=prompt.conversation.continue_final_message,
    )


async def _answer_grammar(
    request: web.Request,
    body: SamplingBody,
    card: ModelCard,
    prompt: ChatPrompt,
    also: Question | None,
) -> str:
    """The grammar that the answers to `prompt` must match, checked, as it travels; empty where
    there is none. A call that is demanded goes before a text of a certain form; one that is allowed
    may come instead. Raises ApiError."""
    asked = await grammar_of(request, body, card, also)
    checker = request.app[GRAMMARS]
    calls = await _checked_calls(checker, prompt) if prompt.call_grammar else ""
    if calls and (prompt.conversation.tool_choice.is_forced or not asked):
        return calls
    return prompt.grammar_of_answer(asked)


async def _checked_calls(checker: GrammarChecker, prompt: ChatPrompt) -> str:
    """The grammar of the calls that an answer must or may have. Raises ApiError that names the
    first tool whose schema cannot be followed."""
    whole = GrammarQuestion("lark", prompt.call_grammar)
    try:
        return await checker.grammar(whole, "tools")
    except ApiError as error:
        is_long = len(whole.text) > GRAMMAR_CHARS_MAX
        for tool in () if is_long else prompt.conversation.tools[:TOOLS_ASKED_MAX]:
            choice = ToolChoice("named", tool.name)
            alone = replace(prompt.conversation, tools=(tool,), tool_choice=choice)
            question = GrammarQuestion("lark", prompt.format.call_grammar(alone, prompt.text))
            await checker.grammar(question, "tools", of=f"'{tool.name[:NAME_CHARS_SHOWN]}'")
        raise error
