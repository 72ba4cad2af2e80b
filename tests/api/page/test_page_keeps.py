"""What the page keeps, and what it forgets when it is told to: no press loses more than it says."""

import pytest

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")

KEEP = "localStorage.setItem('molink-keeps-history', 'yes')"
KEPT = "Object.keys(localStorage).filter(one => one.startsWith('molink-chat-'))"


def text(visit):
    return visit.answer.locator(".text")


async def written_on(visit, question, piece):
    """An answer of which a piece is there, and the history open before it."""
    visit.service.put(piece)
    await visit.ask(question)
    await expect(text(visit)).to_have_text(piece)
    await visit.page.get_by_role("button", name="History").click()
    return visit.page.get_by_role("dialog", name="History")


async def test_a_history_over_an_answer_that_is_written_loses_none_and_deletes_for_good(open_page):
    visit = await open_page()
    await visit.page.evaluate(KEEP)
    history = await written_on(visit, "Tell me.", "Once ")
    visit.service.put("upon a time.", None)
    await expect(visit.page.locator("#send")).to_be_visible()
    await history.get_by_role("button", name="Tell me.", exact=True).click()
    await expect(history).to_be_hidden()
    await expect(text(visit)).to_have_text("Once upon a time.")
    await expect(visit.answer.locator(".note")).to_have_text("")
    assert "upon a time." in await visit.page.evaluate(f"localStorage[{KEPT}[0]]")
    await visit.service.closed.acquire()

    history = await written_on(visit, "More?", "Then ")
    delete = history.locator("#delete-history")
    await delete.click()
    await expect(delete).to_have_text("Press again to delete all (1)")
    assert len(await visit.page.evaluate(KEPT)) == 1, "it is asked first"
    await delete.click()
    await expect(delete).to_have_text("Delete all")
    await expect(history).to_contain_text("No conversation is kept.")
    await visit.service.closed.acquire()
    await history.get_by_role("button", name="Close").click()
    await expect(visit.page.locator("article")).to_have_count(0)
    visit.service.put("Anew.", None)
    await visit.ask("Who?")
    await expect(visit.page.locator("#send")).to_be_visible()
    (kept,) = await visit.page.evaluate(f"{KEPT}.map(one => localStorage[one])")
    assert "Who?" in kept and "Tell me." not in kept


async def test_what_is_typed_outlives_the_choice_of_another_address(open_page):
    visit = await open_page()
    below = f'[{{"name": "Below", "url": "{visit.url}sub/", "key": "", "models": ["m"]}}]'
    await visit.page.evaluate("all => sessionStorage.setItem('molink-addresses', all)", below)
    await visit.page.reload()
    question = visit.page.locator("#question")
    await question.fill("A long question")
    async with visit.page.expect_navigation():
        await visit.page.get_by_label("Model and address").select_option(label="m")
    await expect(question).to_have_value("A long question")


async def test_the_form_for_another_key_can_be_left(open_page):
    visit = await open_page()
    await visit.page.get_by_role("button", name="Settings").click()
    await visit.page.get_by_role("button", name="Change the key").click()
    await visit.page.locator("#key-form").get_by_role("button", name="Cancel").click()
    await expect(visit.page.locator("#key-form")).to_be_hidden()
    await expect(visit.page.locator("#question")).to_be_focused()
    await expect(visit.page.locator("#state")).to_have_text("Ready")


async def test_a_server_that_falls_silent_is_not_ready(open_page):
    visit = await open_page()
    await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
    await visit.page.clock.install()
    asked = []
    await visit.page.route("**/ring", lambda route: asked.append(route))  # Never answered.
    async with visit.page.expect_request("**/ring"):
        pass
    for _ in range(4):
        await visit.page.clock.run_for(10_000)
    await expect(visit.page.locator("#state")).to_contain_text("cannot be reached")
    await expect(visit.page.locator("#rings.stale")).to_have_count(1)
    assert len(asked) <= 5, "each is given up before the next"
