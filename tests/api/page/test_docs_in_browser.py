"""The page at /docs, in a real browser: it lists every operation, and a form sends one."""

import json
import shlex

import pytest

from molink.api.access import Access
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def opened(open_page, access=None, **how):
    visit = await open_page(access=access, **how)
    visit.asked.clear()
    await visit.page.goto(f"{visit.url}docs")
    await expect(visit.page.locator("#about")).not_to_contain_text("Reading")
    return visit


async def operation(visit, name):
    """The part of the page for `name`, unfolded."""
    summaries = visit.page.locator("main > section > details > summary")
    summary = summaries.filter(has=visit.page.get_by_text(name, exact=True))
    await summary.click()
    return summary.locator("..")


async def test_it_lists_every_operation_of_the_document(open_page):
    visit = await opened(open_page)
    shown = await visit.page.locator("main > section > details > summary > b").all_inner_texts()
    document = await visit.page.evaluate("async () => (await fetch('/openapi.json')).json()")
    told = [f"{m.upper()} {path}" for path, methods in document["paths"].items() for m in methods]
    assert sorted(shown) == sorted(told) and "POST /v1/chat/completions" in shown


async def test_a_call_is_tried_within_the_policy_and_nobody_else_is_asked(open_page):
    visit = await opened(open_page)
    visit.service.put("Once ", "more", None)
    form = await operation(visit, "POST /v1/completions")
    await form.get_by_label("Body").fill(json.dumps({"prompt": "Tell", "max_tokens": 5}))
    await form.get_by_role("button", name="Send").press("Enter")
    answer = form.get_by_role("log")
    await expect(answer).to_contain_text('"text": "Once more"')
    assert (await answer.inner_text()).startswith("200 OK\n")
    await expect(form.get_by_role("button", name="Send")).to_be_enabled()
    await expect(form.get_by_role("button", name="Send")).to_be_focused()
    assert visit.complaints == []
    assert visit.asked and all(asked.startswith(visit.url) for asked in visit.asked)


async def test_the_example_of_the_form_is_one_that_is_answered(open_page):
    visit = await opened(open_page)
    visit.service.put("Once", None)
    form = await operation(visit, "POST /v1/chat/completions")
    await form.get_by_role("button", name="Send").click()
    await expect(form.get_by_role("log")).to_contain_text("200 OK")


async def test_a_stream_is_shown_while_it_comes_and_can_be_stopped(open_page):
    visit = await opened(open_page)
    form = await operation(visit, "POST /generate")
    await form.get_by_label("Body").fill(json.dumps({"prompt": "Tell", "stream": True}))
    await form.get_by_role("button", name="Send").click()
    visit.service.put("<b>Once</b>")
    answer = form.get_by_role("log")
    await expect(answer).to_contain_text("<b>Once</b>")
    await form.get_by_role("button", name="Stop").click()
    await expect(answer).to_contain_text("Stopped.")
    await visit.service.closed.acquire()


async def test_words_are_paragraphs_and_refused_fields_are_folded(open_page):
    visit = await opened(open_page)
    form = await operation(visit, "POST /v1/chat/completions")
    refused = form.get_by_text("Fields that are refused")
    await expect(refused).to_be_visible()
    await expect(form.get_by_text("Refused unless they mean what is usual")).to_be_hidden()
    assert "`" not in await form.locator("> p").first.inner_text()


async def test_a_call_can_be_copied_as_a_command(open_page):
    visit = await opened(open_page)
    form = await operation(visit, "POST /v1/completions")
    await form.get_by_label("Body").fill('{"prompt": "It\'s"}')
    await form.get_by_text("As a command").click()
    command = form.locator("details pre").first
    await expect(command).to_contain_text("/v1/completions' -H 'Content-Type: application/json' -d")
    await expect(command).to_contain_text("curl -N -X POST 'http")
    assert shlex.split(await command.inner_text())[-1] == '{"prompt": "It\'s"}'
    await form.get_by_label("Body").fill('{"prompt": "later"}')
    await form.get_by_label("(header)").first.fill("one")
    await visit.page.get_by_label("Key").fill("secret")
    words = shlex.split(await command.inner_text())
    assert words[-1] == '{"prompt": "later"}'
    assert "Authorization: Bearer $MOLINK_API_KEY" in words
    assert any(word.endswith(": one") for word in words)


async def test_a_key_is_sent_and_its_lack_is_told(open_page, tmp_path):
    store = KeyStore.open(tmp_path)
    live = LiveKeys(KeyStore.open(tmp_path))
    visit = await opened(open_page, Access(live, required=True))
    form = await operation(visit, "GET /v1/models")
    send, answer = form.get_by_role("button", name="Send"), form.get_by_role("log")
    await send.click()
    await expect(answer).to_contain_text("401")
    await visit.page.get_by_label("Key").fill(store.create(0.0)[1])
    await send.click()
    await expect(answer).to_contain_text("tiny/model")
    live.store.close()
    store.close()


@pytest.mark.parametrize("wide", [375, 1280])
async def test_nothing_is_cut_off(open_page, wide):
    visit = await opened(open_page, viewport={"width": wide, "height": 800})
    form = await operation(visit, "POST /v1/chat/completions")
    await form.get_by_text("Fields of the body").click()
    assert await visit.page.evaluate("document.documentElement.scrollWidth") <= wide
