"""Text files that are attached, and the way to the API's reference, in a real browser."""

import pytest

api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
expect = api.expect
pytestmark = pytest.mark.asyncio(loop_scope="module")

DROP = """([name, text]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  const how = { dataTransfer, bubbles: true, cancelable: true };
  const event = new DragEvent("drop", how);
  document.querySelector("main").dispatchEvent(event);
  return event.defaultPrevented;
}"""


def file(name: str, content: bytes) -> dict[str, object]:
    return {"name": name, "mimeType": "", "buffer": content}


async def test_text_files_are_chosen_by_keyboard_and_go_into_the_message(open_page):
    visit = await open_page()
    box = visit.page.locator("#question")
    async with (
        visit.page.expect_file_chooser() as asked
    ):  # From now on, as the browser needs a while.
        await box.fill("What is this?")
        await visit.page.keyboard.press("Tab")
        await expect(visit.page.get_by_role("button", name="Attach text files")).to_be_focused()
        await visit.page.keyboard.press("Enter")
    chooser = await asked.value
    assert chooser.is_multiple()
    fenced = "A fence:\n```\nx\n```\n"
    await chooser.set_files([file("ö.md", fenced.encode()), file("a.py", b"x = 1\r\n")])
    first = f"ö.md\n````\n{fenced}````\n"
    await expect(box).to_have_value(f"{first}\na.py\n```\nx = 1\n```\n\nWhat is this?")
    await expect(box).to_be_focused()
    visit.service.put("Code.", None)
    await visit.page.keyboard.press("Enter")
    await expect(visit.answer.locator(".text")).to_have_text("Code.")
    assert visit.complaints == []


async def test_a_file_that_is_dropped_is_attached_and_does_not_replace_the_page(open_page):
    visit = await open_page()
    assert await visit.page.evaluate(DROP, ["notes.txt", "Blue."])
    await expect(visit.page.locator("#question")).to_have_value("notes.txt\n```\nBlue.\n```\n")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("much.csv", b"x" * 100_001, "much.csv has 101 kB: attach at most 100 kB of text."),
        ("a.png", b"\x89PNG\r", "a.png is no text in UTF-8: only text can be attached."),
        ("a.bin", b"a\0b", "a.bin is no text in UTF-8: only text can be attached."),
    ],
)
async def test_what_is_too_large_or_no_text_is_told_and_left_out(
    open_page, name, content, sentence
):
    visit = await open_page()
    await visit.page.locator("#attach-file").set_input_files(
        [file(name, content), file("b.txt", b"x" * 100_000)]
    )
    await expect(visit.page.locator("#keys")).to_have_text(sentence)
    await expect(visit.page.locator("#announcer")).to_contain_text(sentence)
    text = "x" * 100_000
    await expect(visit.page.locator("#question")).to_have_value(f"b.txt\n```\n{text}\n```\n")


async def test_settings_lead_to_the_reference_of_the_api(open_page):
    visit = await open_page()
    await visit.page.get_by_role("button", name="Settings").click()
    await visit.page.get_by_role("link", name="API reference").click()
    await expect(visit.page.locator("#about")).not_to_contain_text("Reading")
    assert visit.page.url == f"{visit.url}docs"
    assert visit.complaints == []
