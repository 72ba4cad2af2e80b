"""The history on the page: kept in this browser by choice, saved, read again, and how much fits."""

import json

import pytest

from tests.api.page.test_page_answers import answered, text

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_conversations_are_kept_in_the_browser_by_choice(open_page):
    visit = await open_page()
    await answered(visit, "One?", "First.")
    assert await visit.page.evaluate("localStorage.length") == 0
    history = visit.page.get_by_role("dialog", name="History")
    await visit.page.get_by_role("button", name="History").click()
    await expect(history).to_contain_text("No conversation is kept.")
    await history.get_by_label("Keep conversations").check()
    await expect(history.locator("#chats li")).to_have_count(1)
    await history.get_by_role("button", name="Close").click()
    await visit.page.get_by_role("button", name="New chat").click()
    await answered(visit, "Two?", "Second.")
    other = await visit.page.context.new_page()
    await other.goto(visit.url)
    await other.get_by_role("button", name="History").click()
    await expect(other.locator("#chats .title")).to_have_text(["Two?", "One?"])
    await other.get_by_role("button", name="One?", exact=True).click()
    await expect(other.locator(".answer .text")).to_have_text("First.")
    await other.get_by_role("button", name="History").click()
    async with other.expect_download() as saved:
        await other.get_by_role("button", name="as Markdown").click()
    written = (await (await saved.value).path()).read_text(encoding="utf-8")
    assert written == "# One?\n\n## You\n\nOne?\n\n## Answer\n\nFirst.\n"
    await other.get_by_role("button", name="Delete: Two?").click()
    await expect(other.locator("#chats li")).to_have_count(1)
    await other.get_by_role("button", name="Delete all").click()
    await other.get_by_role("button", name="Press again").click()
    await expect(other.locator("#chats li")).to_have_count(0)


FILL = """([count, chars]) => {
  localStorage.setItem("molink-keeps-history", "yes");
  localStorage.setItem("molink-chat-spoilt", "{");
  const content = "x".repeat(chars);
  for (let n = 0; n < count; n++) {
    const chat = { id: `${n}`, at: n, messages: [{ role: "user", content }], pending: null };
    localStorage.setItem(`molink-chat-${n}`, JSON.stringify(chat));
  }
}"""


async def test_a_history_that_is_full_makes_room_and_says_so(open_page):
    """Of 50 MB a browser takes 5: so much never gets in, and what is there makes room."""
    visit = await open_page()
    await visit.page.evaluate(FILL, [4, 499_000])
    await answered(visit, "One?", "y" * 100_000)
    await expect(visit.page.locator("#keys")).to_have_text(
        "The history is full: its 2 oldest conversations are deleted."
    )
    kept = "Object.keys(localStorage).filter(one => one.startsWith('molink-chat-')).length"
    assert await visit.page.evaluate(kept) == 4, "three of before, and this one"
    await visit.page.evaluate("""() => {
      const messages = [{ role: "user", content: "z".repeat(2_100_000) }];
      sessionStorage.setItem("molink-conversation", JSON.stringify({ id: "z", at: 0, messages }));
    }""")
    await visit.page.reload()
    await expect(visit.page.locator("#keys")).to_contain_text("too long for the history")
    await visit.page.get_by_role("button", name="History").click()
    await expect(visit.page.locator("#chats li")).to_have_count(4)


async def test_a_saved_history_is_read_and_merged_without_doubles(open_page, tmp_path):
    visit = await open_page()
    await answered(visit, "One?", "First.")
    await visit.page.get_by_role("button", name="History").click()
    history = visit.page.get_by_role("dialog", name="History")
    await history.get_by_label("Keep conversations").check()
    async with visit.page.expect_download() as saved:
        await history.get_by_role("button", name="Save all").click()
    (one,) = json.loads((await (await saved.value).path()).read_text(encoding="utf-8"))
    later = one | {"at": one["at"] + 1, "messages": [*one["messages"], one["messages"][0]]}
    evil = {"id": "b", "at": 1, "pending": {"id": "resp_1"}, "messages": one["messages"]}
    evil["messages"] = [{**evil["messages"][1], "facts": {"attempts": 7}, "from": "me"}]
    files = {
        "same": ([one], "0 added, 1 known already."),
        "single": (one, "0 added, 1 known already."),
        "later": ([later, evil], "2 added."),
        "wrong": ([one, {"id": "c"}], "holds no conversations"),
        "much": (
            [
                one
                | {
                    "id": "d",
                    "title": 3,
                    "messages": [{"role": "user", "content": "x" * 2_100_000}],
                }
            ],
            "0 added, 1 without room",
        ),
    }
    for name, (content, sentence) in files.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        await visit.page.locator("#import-file").set_input_files(path)
        await expect(history.locator("#history-told")).to_contain_text(sentence)
        asked = visit.page.locator("article.question")
        await expect(asked).to_have_count(1 if name in ("same", "single") else 2)
    kept = "JSON.parse(sessionStorage.getItem('molink-conversation')).messages.length"
    assert await visit.page.evaluate(kept) == 3, "the later state is open, and stays"
    await expect(history.locator("#chats li")).to_have_count(2)
    await (
        history.get_by_role("button", name="Answer", exact=True)
        .or_(history.locator("#chats .title", has_text="First."))
        .first.click()
    )
    await expect(text(visit)).to_have_text("First.")
    assert visit.complaints == []


async def test_a_file_of_50_mb_is_refused_without_being_read(open_page, tmp_path):
    visit = await open_page()
    path = tmp_path / "much.json"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    await visit.page.get_by_role("button", name="History").click()
    await visit.page.locator("#import-file").set_input_files(path)
    await expect(visit.page.locator("#history-told")).to_have_text(
        "This file has 50 MB, at most 8 MB are read: save fewer conversations into it."
    )
    assert await visit.page.evaluate("localStorage.length") == 0
