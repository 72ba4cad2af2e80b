"""What is written stays, however an answer ends, and the page says how it has ended."""

import asyncio

import pytest

from molink.errors import RingError
from tests.api.page.test_page_answers import answered, sent, text

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def half_written(visit):
    visit.service.put("Once ", "upon ")
    await visit.ask("Tell me.")
    await expect(text(visit)).to_have_text("Once upon ")


async def asks_with_what_was_written(visit):
    """The next question goes to the server behind the half answer."""
    visit.service.pieces = asyncio.Queue()
    await answered(visit, "And?", "No.")
    assert sent(visit.service) == "<user>Tell me.<assistant>Once upon <user>And?<assistant>"


@pytest.mark.parametrize("way", ["stop", "gone"])
async def test_an_answer_that_ends_while_its_line_is_broken_keeps_its_text(open_page, way):
    visit = await open_page()
    await half_written(visit)
    there = "**/v1/responses/*"
    if way == "stop":
        await visit.page.context.set_offline(True)
        visit.cut_lines()
        async with visit.page.expect_event("requestfailed", lambda one: "?stream" in one.url):
            await expect(visit.answer.locator(".note")).to_contain_text("goes on there")
        await visit.page.keyboard.press("Escape")
        await expect(visit.answer.locator(".note")).to_have_text("Stopped.")
        await visit.page.context.set_offline(False)
    else:
        await visit.page.route(there, lambda route: route.fulfill(status=404, json={}))
        visit.cut_lines()
        await expect(visit.answer.locator(".note")).to_contain_text("does not have this answer")
        await visit.page.unroute(there)
    await expect(visit.answer.get_by_role("button", name="Copy")).to_be_visible()
    await asks_with_what_was_written(visit)


async def test_an_answer_that_failed_half_way_says_so_later_and_goes_on(open_page):
    visit = await open_page()
    async with visit.page.expect_event("request", lambda one: one.method == "DELETE"):
        visit.service.put("Once ", "upon ", RingError("The ring was lost 8 times."))
        await visit.ask("Tell me.")
        await expect(visit.answer.locator(".note")).to_contain_text("lost 8 times")
    await visit.page.reload()
    await expect(visit.answer.locator(".note")).to_have_text("The answer broke off here.")
    await visit.page.get_by_role("button", name="History").click()
    async with visit.page.expect_download() as saved:
        await visit.page.get_by_role("button", name="as Markdown").click()
    written = (await (await saved.value).path()).read_text(encoding="utf-8")
    assert written.endswith("Once upon \n\n*The answer broke off here.*\n")
    await visit.page.get_by_role("button", name="Close").click()
    visit.service.put("a ", RingError("The ring was lost 8 times."))
    await visit.page.get_by_role("button", name="Continue").click()
    await expect(text(visit)).to_have_text("Once upon a ")
    await visit.page.get_by_role("button", name="Continue").click()
    visit.service.put("time.", None)
    await expect(text(visit)).to_have_text("Once upon a time.")
    await expect(visit.page.locator("#send")).to_be_visible()
    await expect(visit.answer.locator(".note")).to_have_text("")


THOUGHT = """() => {
  const answer = { role: "assistant", content: "", reasoning: "Hm.", end: "length" };
  const messages = [{ role: "user", content: "One?" }, answer];
  const chat = { id: "1-2", at: 1, pending: null, messages };
  sessionStorage.setItem("molink-conversation", JSON.stringify(chat));
}"""


async def test_an_answer_of_reasoning_alone_is_made_anew_or_left_out(open_page):
    visit = await open_page()
    await visit.page.evaluate(THOUGHT)
    await visit.page.reload()
    await expect(visit.answer.locator(".actions button")).to_have_text(["Answer again"])
    await answered(visit, "Two?", "Second.")
    assert sent(visit.service) == "<user>Two?<assistant>"
    await visit.page.evaluate(THOUGHT)
    await visit.page.reload()
    visit.service.put("First.", None)
    await visit.page.get_by_role("button", name="Answer again").click()
    await expect(text(visit)).to_have_text("First.")
    assert sent(visit.service) == "<user>One?<assistant>"


KEEP = "localStorage.setItem('molink-keeps-history', 'yes')"


async def opened_from_history(page, title):
    await page.get_by_role("button", name="History").click()
    await page.get_by_role("button", name=title, exact=True).click()


async def test_an_answer_that_is_left_for_another_conversation_is_kept(open_page):
    visit = await open_page()
    await visit.page.evaluate(KEEP)
    await half_written(visit)
    await visit.page.get_by_role("button", name="New chat").click()
    await expect(visit.page.locator("article")).to_have_count(0)
    await opened_from_history(visit.page, "Tell me.")
    await expect(text(visit)).to_have_text("Once upon ")
    await expect(visit.answer.locator(".note")).to_have_text("Stopped.")
    await asks_with_what_was_written(visit)


async def test_an_answer_that_another_tab_asked_for_goes_on_when_it_is_left(open_page):
    visit = await open_page()
    await visit.page.evaluate(KEEP)
    await half_written(visit)
    other = await visit.page.context.new_page()
    asked = []
    other.on("request", lambda one: asked.append(one.url))
    await other.goto(visit.url)
    await opened_from_history(other, "Tell me.")
    await expect(other.locator(".answer .text")).to_have_text("Once upon ")
    await other.get_by_role("button", name="New chat").click()
    await expect(other.locator("article")).to_have_count(0)
    visit.service.put("a time.", None)
    await expect(text(visit)).to_have_text("Once upon a time.")
    await expect(visit.page.locator("#send")).to_be_visible()
    assert not [url for url in asked if url.endswith("/cancel")]
    await opened_from_history(other, "Tell me.")
    await expect(other.locator(".answer .text")).to_have_text("Once upon a time.")


async def test_an_edited_question_stays_until_another_is_sent(open_page):
    visit = await open_page()
    await answered(visit, "One?", "First.")
    await answered(visit, "Two?", "Second.")
    edit = visit.page.get_by_role("button", name="Edit this message").first
    await edit.click()
    await expect(visit.page.locator("#question")).to_have_value("One?")
    await expect(visit.page.locator("#keys")).to_contain_text("replaces the marked message")
    await edit.click()
    await expect(visit.page.locator("#keys")).to_contain_text("Enter sends")
    await edit.click()
    await expect(visit.page.locator("#question")).to_have_value("One?")
    await visit.page.reload()
    await expect(visit.page.locator("article")).to_have_count(4)
    await edit.click()
    await answered(visit, "Three?", "Third.")
    await expect(visit.page.locator("article")).to_have_count(2)
    assert sent(visit.service) == "<user>Three?<assistant>"


PENDING = "JSON.parse(sessionStorage.getItem('molink-conversation')).pending"


async def begun(visit):
    """Wait until the server has begun an answer."""
    async with asyncio.timeout(20):
        while not await visit.page.evaluate(PENDING):  # noqa: ASYNC110 - the page begins it
            await asyncio.sleep(0.05)


async def test_an_answer_stays_when_no_other_comes_in_its_place(open_page):
    visit = await open_page()
    await answered(visit, "One?", "First.")
    again = visit.page.get_by_role("button", name="Answer again")
    await again.click()
    await begun(visit)
    visit.service.put(RingError("The ring was lost 8 times."))
    note = visit.answer.locator(".note")
    await expect(note).to_have_text(
        "The ring was lost 8 times. No other answer has come: this one stays."
    )
    await expect(text(visit)).to_have_text("First.")
    await again.click()
    await begun(visit)
    await visit.page.reload()
    await expect(visit.page.locator("#stop")).to_be_visible()
    await visit.page.keyboard.press("Escape")
    await expect(text(visit)).to_have_text("First.")
    await expect(visit.page.locator("article")).to_have_count(2)
    visit.service.pieces = asyncio.Queue()
    visit.service.put("Other.", None)
    await again.click()
    await expect(text(visit)).to_have_text("Other.")
    await expect(visit.page.locator("#send")).to_be_visible()
    await visit.page.reload()
    await expect(visit.page.locator("article .text")).to_have_text(["One?", "Other."])
    assert sent(visit.service) == "<user>One?<assistant>"
