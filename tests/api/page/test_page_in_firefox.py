"""The page in Firefox, in short: what `test_page_in_browser` and its neighbours try in Chromium."""

import json

import pytest

from tests.api.page.conftest import ToldService
from tests.api.page.test_addresses import add, keyed, origin, sent_with  # noqa: F401, a fixture

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def browser(firefox_browser):
    return firefox_browser


ANSWER = "| a | b |\n|---|---|\n| 1 | 2 |\n\nEuler: $e^{i\\pi} = -1$.\n\n```py\nx = 1\n```\n\nOnce "


def text(visit):
    return visit.answer.locator(".text")


async def test_an_answer_is_shown_goes_on_after_a_load_and_is_stopped(open_page):
    visit = await open_page(viewport={"width": 375, "height": 667})
    await expect(visit.page.locator("#state")).to_have_text("Ready")
    await expect(visit.page.locator("#ring-summary")).to_have_text("3 PCs in 1 ring")
    visit.service.put(ANSWER)
    await visit.ask("Tell me.")
    await expect(text(visit)).to_contain_text("Once ")
    await expect(text(visit).locator("td")).to_have_text(["1", "2"])
    await expect(text(visit).locator("math msup mi").first).to_have_text("e")
    box = await text(visit).locator("math").bounding_box()
    assert box["width"] > 20 and box["height"] > 8, "it is drawn"
    await visit.page.reload()
    await expect(text(visit)).to_contain_text("Once ")
    visit.service.put("upon a ")
    await expect(text(visit)).to_contain_text("Once upon a ")
    assert await visit.page.evaluate("document.documentElement.scrollWidth") == 375
    visit.service.events.add("stage_lost", "ring 1 has lost cellar", node="cellar", ring=1)
    await expect(visit.page.locator("#state")).to_contain_text("cellar does not answer")
    await visit.page.get_by_role("button", name="Stop").click()
    await expect(visit.answer.locator(".note")).to_have_text("Stopped.")
    await visit.service.closed.acquire()
    assert len(visit.service.requests) == 1, "it was not computed again"
    visit.service.put("a time.", None)
    await visit.page.get_by_role("button", name="Continue").click()
    await expect(text(visit)).to_contain_text("Once upon a a time.")
    await expect(visit.page.locator("#send")).to_be_visible()
    assert visit.complaints == []


async def test_an_answer_goes_on_after_its_lines_were_cut(open_page):
    visit = await open_page()
    visit.service.put("Once ")
    await visit.ask("Tell me.")
    await expect(text(visit)).to_have_text("Once ")
    visit.cut_lines()
    visit.service.put("upon a ")
    await expect(text(visit)).to_contain_text("Once upon a ")
    visit.service.put("time.", None)
    await expect(text(visit)).to_have_text("Once upon a time.")
    await expect(visit.page.locator("#send")).to_be_visible()
    assert len(visit.service.requests) == 1, "it was not computed again"


async def test_a_history_is_kept_and_read_from_a_file(open_page, tmp_path):
    visit = await open_page()
    visit.service.put("First.", None)
    await visit.ask("One?")
    await expect(visit.page.locator("#send")).to_be_visible()
    await visit.page.get_by_role("button", name="History").click()
    history = visit.page.get_by_role("dialog", name="History")
    await history.get_by_label("Keep conversations").check()
    await expect(history.locator("#chats li")).to_have_count(1)
    other = {"id": "b", "at": 1, "messages": [{"role": "user", "content": "Two?"}]}
    path = tmp_path / "saved.json"
    path.write_text(json.dumps([other]), encoding="utf-8")
    await history.locator("#import-file").set_input_files(path)
    await expect(history.locator("#history-told")).to_contain_text("1 added")
    await visit.page.reload()
    await visit.page.get_by_role("button", name="History").click()
    await expect(history.locator("#chats .title")).to_have_text(["One?", "Two?"])
    await history.get_by_role("button", name="Two?", exact=True).click()
    await expect(visit.page.locator(".question .text")).to_have_text("Two?")
    assert visit.complaints == []


async def test_another_address_is_asked_with_its_own_key_alone(open_page, keyed):  # noqa: F811
    here = await open_page()
    access, secret = keyed("theirs", origin(here))
    there = await open_page(ToldService(), access)
    dialog = await add(here.page, f"{there.url}#key={secret}", "Ben's ring")
    await dialog.get_by_role("button", name="Close").click()
    asked = sent_with(here)
    await here.page.get_by_label("Model and address").select_option(label="Ben's ring")
    await expect(here.page.locator("#state")).to_have_text("Ready")
    there.service.put("By Ben.", None)
    await here.ask("Who are you?")
    await expect(text(here)).to_have_text("By Ben.")
    await expect(here.answer.locator(".from")).to_have_text("tiny/model at Ben's ring")
    to_there = origin(there).split("/")[2]
    assert {place for place, key in asked if key} == {to_there}
