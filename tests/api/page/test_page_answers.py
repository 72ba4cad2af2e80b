"""What a reader can do with answers on the page, and what outlives a load, a line and a tab."""

import asyncio
import json

import pytest

from molink.api.access import Access
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore
from molink.errors import OverloadedError
from tests.api.page.conftest import ToldService

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")

TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n\n"


def sent(service, index=-1):
    return "".join(map(chr, service.requests[index].prompt_token_ids))


async def answered(visit, question, *pieces):
    visit.service.put(*pieces, None)
    await visit.ask(question)
    await expect(visit.page.locator("#send")).to_be_visible()


def text(visit):
    return visit.answer.locator(".text")


# -- an answer goes on ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["reload", "lines are cut", "offline"])
async def test_an_answer_goes_on_whatever_happens_to_the_page(open_page, way):
    visit = await open_page()
    visit.service.put(TABLE, "Once ")
    await visit.ask("Tell me.")
    await expect(text(visit)).to_contain_text("Once ")
    if way == "reload":
        await visit.page.reload()
    else:
        await visit.page.context.set_offline(way == "offline")
        visit.cut_lines()
        await expect(visit.answer.locator(".note")).to_contain_text("goes on there")
        await expect(text(visit)).to_contain_text("Once ")
        await visit.page.context.set_offline(False)
    visit.service.put("upon a ")
    await expect(text(visit)).to_contain_text("Once upon a ")
    visit.service.put("time.", None)
    await expect(text(visit).locator("p")).to_have_text("Once upon a time.")
    await expect(text(visit).locator("td")).to_have_text(["1", "2"])
    await expect(visit.page.locator("#send")).to_be_visible()
    await expect(visit.answer.locator(".note")).to_have_text("")
    assert len(visit.service.requests) == 1, "it was not computed again"
    await answered(visit, "And?", "No.")
    assert sent(visit.service) == (
        f"<user>Tell me.<assistant>{TABLE}Once upon a time.<user>And?<assistant>"
    )


QUIET_MS = 15_000


async def test_a_line_that_died_without_a_word_is_left_for_another(open_page):
    """As where a phone changes its network: nobody closes the connection, and nothing comes."""
    visit = await open_page()
    await visit.page.clock.install()
    visit.service.put(TABLE, "Once ")
    await visit.ask("Tell me.")
    await expect(text(visit)).to_contain_text("Once ")
    visit.silence_lines()
    visit.service.put("upon a ")
    tokens = visit.answer.locator(".parts div:not([class]) dd")
    async with asyncio.timeout(60):  # The browser may take another dead line first.
        while "upon" not in await text(visit).inner_text():
            await visit.page.clock.run_for(QUIET_MS)
            await asyncio.sleep(0.2)
    assert (await tokens.inner_text()).split(",")[0] == "3", "what is read again counts once"
    visit.service.put("time.", None)
    await expect(text(visit).locator("p")).to_have_text("Once upon a time.")
    await expect(visit.page.locator("#send")).to_be_visible()
    assert len(visit.service.requests) == 1, "it was not computed again"


async def test_a_server_that_has_the_answer_no_more_says_so(open_page):
    visit = await open_page()
    visit.service.put("Once ")
    await visit.ask("Tell me.")
    await expect(text(visit)).to_contain_text("Once ")
    await visit.page.evaluate("""() => {
      const chat = JSON.parse(sessionStorage.getItem("molink-conversation"));
      chat.pending.id = "resp_0";
      sessionStorage.setItem("molink-conversation", JSON.stringify(chat));
    }""")
    await visit.page.reload()
    await expect(visit.answer.locator(".note")).to_contain_text("does not have this answer")
    visit.service.pieces = asyncio.Queue()
    visit.service.put("Anew.", None)
    await visit.page.get_by_role("button", name="Try again").click()
    await expect(text(visit)).to_have_text("Anew.")


async def test_the_server_keeps_nothing_of_an_answer_that_has_come(open_page):
    visit = await open_page()
    body = {}
    visit.page.on("request", lambda one: body.update(json.loads(one.post_data or "{}")))
    async with visit.page.expect_event(
        "response", lambda one: one.request.method == "DELETE"
    ) as it:
        await answered(visit, "Tell me.", "Once.")
    assert (await it.value).ok
    assert body["background"] is True and body["linger_s"] == 300


async def test_a_refused_question_is_asked_again_by_itself(open_page):
    service = ToldService()
    visit = await open_page(service)
    await expect(visit.page.locator("#state")).to_have_text("Ready")
    service.overload = OverloadedError("Too many wait.", 2.0)
    await visit.ask("Tell me.")
    note = visit.answer.locator(".note")
    await expect(note).to_contain_text("Too many wait. Asking again in 2 s.")
    await visit.page.locator("#question").fill("Another?")
    await visit.page.keyboard.press("Enter")
    await expect(visit.page.locator("#keys")).to_contain_text("An answer is being written")
    await expect(visit.page.locator("#question")).to_have_value("Another?")
    service.overload = None
    service.put("Now.", None)
    await expect(text(visit)).to_have_text("Now.")
    await expect(note).to_have_text("")


async def test_a_question_after_an_answer_of_elsewhere_is_asked_again_by_itself(open_page):
    visit = await open_page()
    await answered(visit, "One?", "First.")
    await visit.page.evaluate("""() => {
      const chat = JSON.parse(sessionStorage.getItem("molink-conversation"));
      chat.pending = { id: "resp_0", at: "https://chat.example/" };
      sessionStorage.setItem("molink-conversation", JSON.stringify(chat));
    }""")
    await visit.page.reload()
    await expect(visit.page.locator("#keys")).to_contain_text("written at another address")
    visit.service.overload = OverloadedError("Too many wait.", 1.0)
    await visit.ask("Two?")
    await expect(visit.answer.locator(".note")).to_contain_text("Asking again in 1 s.")
    visit.service.overload = None
    visit.service.put("Second.", None)
    await expect(text(visit)).to_have_text("Second.")


async def test_tokens_and_their_rate_are_told_while_they_come(open_page):
    visit = await open_page()
    await visit.ask("Tell me.")
    for _ in range(30):
        visit.service.put("word ")
        await asyncio.sleep(0.05)
    await expect(visit.answer.locator(".served")).to_contain_text(" per second")
    await expect(visit.answer).to_have_attribute("aria-busy", "true")


async def test_a_pc_that_goes_away_is_told_and_drawn(open_page):
    service = ToldService()
    visit = await open_page(service)
    service.put("Once ")
    await visit.ask("Tell me.")
    await expect(text(visit)).to_have_text("Once ")
    service.events.add("stage_lost", "ring 1 has lost cellar", node="cellar", ring=1)
    await expect(visit.page.locator("#state")).to_have_text(
        "cellar does not answer: the ring waits."
    )
    await expect(visit.page.locator(".ring.waiting .stages li").nth(1)).to_contain_text("no answer")
    await expect(visit.page.locator(".picture .held").nth(1)).to_have_class("held away")
    await expect(visit.answer.locator(".note")).to_have_text(
        "cellar does not answer: the ring waits, and goes on by itself."
    )
    service.events.add("ring_resumed", "ring 1 goes on", ring=1)
    await expect(visit.page.locator("#state")).to_have_text("Ready")
    await expect(visit.page.locator(".ring.waiting")).to_have_count(0)


async def test_the_rings_of_a_server_that_is_gone_are_old(open_page):
    visit = await open_page()
    await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
    await visit.page.context.set_offline(True)
    await expect(visit.page.locator("#ring-summary")).to_contain_text("as of ")
    await expect(visit.page.locator("#rings.stale")).to_have_count(1)
    await visit.page.context.set_offline(False)
    await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
    await expect(visit.page.locator("#rings.stale")).to_have_count(0)


# -- what can be done with messages ---------------------------------------------------------------


async def test_code_and_answers_are_copied(open_page):
    visit = await open_page(permissions=["clipboard-read", "clipboard-write"])
    await answered(visit, "Code?", "So:\n\n```py\nx = 1\n```\n")
    clipboard = "navigator.clipboard.readText()"
    copy = visit.page.get_by_role("button", name="Copy the code")
    await copy.click()
    await expect(copy).to_have_text("Copied")
    assert await visit.page.evaluate(clipboard) == "x = 1"
    await visit.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: null})")
    other = visit.page.get_by_role("button", name="Copy the answer")
    await other.click()
    await expect(other).to_have_text("Copied")
    page = await visit.page.context.new_page()
    await page.goto(visit.url)
    assert await page.evaluate(clipboard) == "So:\n\n```py\nx = 1\n```\n"


async def test_an_answer_is_made_anew_and_a_question_changed(open_page):
    visit = await open_page()
    await answered(visit, "One?", "First.")
    await answered(visit, "Two?", "Second.")
    visit.service.put("Other.", None)
    await visit.page.get_by_role("button", name="Answer again").click()
    await expect(text(visit)).to_have_text("Other.")
    assert sent(visit.service) == "<user>One?<assistant>First.<user>Two?<assistant>"
    await visit.page.get_by_role("button", name="Edit this message").first.click()
    await expect(visit.page.locator("#question")).to_have_value("One?")
    await answered(visit, "Three?", "Third.")
    assert sent(visit.service) == "<user>Three?<assistant>"


async def test_a_stopped_answer_goes_on(open_page):
    visit = await open_page()
    visit.service.put("Once ")
    await visit.ask("Tell me.")
    await expect(text(visit)).to_have_text("Once ")
    await visit.page.keyboard.press("Escape")
    await expect(visit.answer.locator(".note")).to_have_text("Stopped.")
    await visit.service.closed.acquire()
    visit.service.put("upon ")
    await visit.page.get_by_role("button", name="Continue").click()
    await expect(text(visit)).to_have_text("Once upon ")
    assert sent(visit.service) == "<user>Tell me.<assistant>Once "
    await visit.page.reload()
    visit.service.put("a time.", None)
    await expect(text(visit)).to_have_text("Once upon a time.")
    await expect(visit.page.locator("#send")).to_be_visible()
    await answered(visit, "And?", "No.")
    assert sent(visit.service) == (
        "<user>Tell me.<assistant>Once upon a time.<user>And?<assistant>"
    )


async def test_examples_are_offered_and_not_sent(open_page):
    visit = await open_page()
    await visit.page.get_by_role("group", name="Examples").get_by_role("button").first.click()
    await expect(visit.page.locator("#question")).to_have_value(
        "Compare tea and coffee in a table."
    )
    await expect(visit.page.locator("#question")).to_be_focused()
    assert visit.service.requests == []


# -- keys by a link -------------------------------------------------------------------------------


async def test_a_link_brings_its_key_and_leaves_no_trace(open_page, tmp_path):
    store, live = KeyStore.open(tmp_path), LiveKeys(KeyStore.open(tmp_path))
    _, secret = store.create(0.0, name="anna")
    visit = await open_page(access=Access(live, required=True))
    await visit.page.goto("about:blank")
    await visit.page.goto(f"{visit.url}#key={secret}")
    await expect(visit.page.locator("#model")).to_have_text("tiny/model")
    assert visit.page.url == visit.url
    assert not [url for url in visit.asked if secret in url.partition("#")[0]]
    assert await visit.page.evaluate("localStorage.length") == 0
    store.revoke("anna", 1.0)
    await visit.page.goto(f"{visit.url}#key={secret}")
    alert = visit.page.get_by_role("alert").first
    await expect(alert).to_contain_text("Your key is revoked: whoever runs the server makes")
    _, secret = store.create(0.0, name="ben")
    await visit.page.get_by_label("Key", exact=True).fill(secret)
    await visit.page.get_by_label("Remember on this device").check()
    await visit.page.keyboard.press("Enter")
    await expect(visit.page.locator("#question")).to_be_focused()
    other = await visit.page.context.new_page()
    await other.goto(visit.url)
    await expect(other.locator("#model")).to_have_text("tiny/model")
    await other.get_by_role("button", name="Settings").click()
    await expect(other.locator("#key-state")).to_contain_text("remembered on this device")
    await other.get_by_role("button", name="Forget the key").click()
    assert await other.evaluate("localStorage.length") == 0
    live.store.close()
    store.close()
