"""The grammar of a whole answer: of the text that a request asks for, or of the call it demands."""

from aiohttp import web

from molink.api.chat.prompt import ChatPrompt
from molink.api.errors import ApiError
from molink.api.grammars.fields import GRAMMARS, Question, grammar_of
from molink.api.schemas import SamplingBody
from molink.serving.grammar_check import GrammarQuestion
from molink.serving.service import ModelCard

__all__ = ["answer_grammar"]


async def answer_grammar(
    request: web.Request,
    body: SamplingBody,
    card: ModelCard,
    prompt: ChatPrompt,
    also: Question | None = None,
) -> str:
    """The grammar that the answers to `prompt` must match, checked, as it travels; empty where
    there is none. `also`: what a field asks for that only its endpoint has. Raises ApiError."""
    asked = await grammar_of(request, body, card, also)
    if not prompt.call_grammar or (asked and not prompt.conversation.tool_choice.is_forced):
        return prompt.grammar_of_answer(asked)
    if asked:
        raise ApiError(
            "'tool_choice' asks for a call where another field asks for a text of a certain form: "
            "leave one out.",
            param="tool_choice",
        )
    question = GrammarQuestion("lark", prompt.call_grammar)
    return await request.app[GRAMMARS].grammar(question, "tools")
