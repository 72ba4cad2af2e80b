"""Semantic Kernel: chat, streams, functions that it calls by itself, a format."""

import asyncio

from asked import ASK, MODEL, URL, Weather, tried, tried_too_long
from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function


class Towns:
    @kernel_function(description="Weather of a town.")
    def get_weather(self, town: str) -> str:
        return f"{town}: 21 degrees"


service = OpenAIChatCompletion(
    ai_model_id=MODEL,
    async_client=AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0),
)
kernel = Kernel()
kernel.add_plugin(Towns(), "towns")
loop = asyncio.new_event_loop()


def asked(text=ASK, **fields):
    history, settings = ChatHistory(), OpenAIChatPromptExecutionSettings(**fields)
    history.add_user_message(text)
    answer = service.get_chat_message_content(history, settings, kernel=kernel)
    return str(loop.run_until_complete(answer))


async def streamed():
    history = ChatHistory()
    history.add_user_message(ASK)
    pieces = service.get_streaming_chat_message_content(
        history, OpenAIChatPromptExecutionSettings()
    )
    return "".join([str(one) async for one in pieces])


tried("chat", "21" in asked())
tried("stream", "21" in loop.run_until_complete(streamed()))
tried("auto", "21" in asked(function_choice_behavior=FunctionChoiceBehavior.Auto()))
tried("required", "21" in asked(function_choice_behavior=FunctionChoiceBehavior.Required()))
tried("format", '"degrees": 21' in asked(response_format=Weather))
tried_too_long(asked)
