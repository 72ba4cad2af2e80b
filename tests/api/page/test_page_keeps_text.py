"""What is written stays, however an answer ends, and the page says how it has ended."""

import asyncio

import pytest

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
