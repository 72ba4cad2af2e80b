"""`continue_final_message` and `add_generation_prompt`, as vLLM's server takes them."""

from dataclasses import replace

import openai
import pytest
from transformers import AutoTokenizer

from molink.api.chat import ChatFormat, Conversation, Message, chat_prompt
from molink.models import DEMO_MODEL_DIR
from molink.serving.token_events import TokenEvent
from tests.api.conftest import CARD, CharTokenizer
from tests.api.scripted import TEMPLATE, ScriptedService

MODEL = "tiny/model"
BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Oslo is"}]
GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture
def service():
    return ScriptedService(script=" cold.")


async def ask(client, messages, **extra):
    return await client.chat.completions.create(model=MODEL, messages=messages, extra_body=extra)


@pytest.mark.parametrize(
    ("extra", "prompt"),
    [
        (GOES_ON, "<user>hi<assistant>Oslo is"),
        ({"continue_final_message": True}, "<user>hi<assistant>Oslo is"),
        ({"add_generation_prompt": False}, "<user>hi<assistant>Oslo is"),
        ({}, "<user>hi<assistant>Oslo is<assistant>"),
    ],
)
async def test_the_answer_holds_what_is_new(client, service, extra, prompt):
    answer = await ask(client, BEGUN, **extra)
    assert answer.choices[0].message.content == " cold."
    assert service.prompts == [prompt]


async def test_it_is_counted_as_it_is_asked(service, serve, http):
    url = await serve(service)
    async with http.post(f"{url}/tokenize", json={"messages": BEGUN} | GOES_ON) as response:
        assert (await response.json())["count"] == len("<user>hi<assistant>Oslo is")


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"add_generation_prompt": True}, "continue_final_message"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": "required",
            },
            "tool_choice",
        ),
    ],
)
async def test_what_does_not_go_together(client, extra, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, BEGUN, **{"continue_final_message": True} | extra)
    assert caught.value.param == param


async def test_a_message_with_calls_has_no_text_to_go_on_with(client):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": "Oslo", "tool_calls": [call]}
    with pytest.raises(openai.BadRequestError, match="results"):
        await ask(client, [BEGUN[0], called], continue_final_message=True)


async def test_the_demo_models_own_template_ends_within_the_message():
    card = replace(CARD, tokenizer=AutoTokenizer.from_pretrained(DEMO_MODEL_DIR))
    messages = (Message("user", "hi"), Message("assistant", "Oslo is"))
    open_end = Conversation(messages, add_generation_prompt=False, continue_final_message=True)
    prompt = await chat_prompt(open_end, card, ChatFormat())
    assert prompt.text.endswith("<|assistant|>Oslo is")


@pytest.mark.parametrize(
    ("parsers", "text", "answer", "reasoning", "content"),
    [
        (("none", "deepseek_r1"), "Oslo", " is cold", "", " is cold"),
        (("none", "qwen3"), "<think>Let me", " see.</think>Oslo", " see.", "Oslo"),
        (("none", "qwen3"), "<think>x</think>Os", "lo", "", "lo"),
        (("openai", "openai_gptoss"), "Oslo", " is cold<|return|>", "", " is cold"),
    ],
)
async def test_thoughts_come_before_what_is_continued(parsers, text, answer, reasoning, content):
    card = replace(CARD, tokenizer=CharTokenizer(chat_template=TEMPLATE))
    messages = (Message("user", "hi"), Message("assistant", text))
    open_end = Conversation(messages, add_generation_prompt=False, continue_final_message=True)
    prompt = await chat_prompt(open_end, card, ChatFormat(*parsers))
    reply = prompt.reply(answer, "stop")
    assert (reply.reasoning, reply.text) == (reasoning, content)
    reader = prompt.reader()
    parts = [part for char in answer for part in reader.push(TokenEvent((), char))]
    assert "".join(part.text for part in parts).endswith(content or reasoning)


async def test_a_grammar_is_that_of_what_is_new():
    card = replace(CARD, tokenizer=CharTokenizer(chat_template=TEMPLATE))
    messages = (Message("user", "hi"), Message("assistant", "Oslo"))
    anew = await chat_prompt(Conversation(messages), card, ChatFormat("none", "deepseek_r1"))
    assert "thinking" in anew.grammar_of_answer("start: /a+/")
    open_end = Conversation(messages, add_generation_prompt=False, continue_final_message=True)
    prompt = await chat_prompt(open_end, card, ChatFormat("none", "deepseek_r1"))
    assert prompt.grammar_of_answer("start: /a+/") == "start: /a+/"
