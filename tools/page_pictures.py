"""Takes pictures of the web page and of an owner's page, at three sizes and in both themes.

    python -m tools.page_pictures http://127.0.0.1:8000/ "$(molink agent page)" --out DIR

Both belong to a cluster that runs. The page is asked one question, and taken when its answer has
come; an owner's page as it opens. Each file is `NAME-SIZE-THEME.png`, in few colours, so that it is
small (Pillow comes with `.[bench]`). They are for looking at; the few that documents show are
copied into docs/images by hand.
"""

import asyncio
import io
from pathlib import Path
from typing import Any

import click
from PIL import Image
from playwright.async_api import async_playwright

SIZES = {"phone": (390, 844), "laptop": (1280, 800), "wide": (1920, 1080)}
THEMES = ("light", "dark")
QUESTION = "Tell me a story about a fox and a lighthouse."
COLOURS = 64
"""Of a picture: text and shapes in a dozen colours, and what smooths their edges."""

PATIENCE_MS = 120_000


async def take(page_url: str, owner_url: str, browser: str, out: Path) -> None:
    """Write all pictures into `out`."""
    async with async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=browser)
        for size, (width, height) in SIZES.items():
            for theme in THEMES:
                how = {"viewport": {"width": width, "height": height}, "color_scheme": theme}
                context = await chromium.new_context(**how)
                context.set_default_timeout(PATIENCE_MS)
                name = f"{size}-{theme}.png"
                (out / f"page-{name}").write_bytes(small(await of_page(context, page_url)))
                (out / f"owner-{name}").write_bytes(small(await of_owner(context, owner_url)))
                await context.close()
        await chromium.close()


async def of_page(context: Any, url: str) -> bytes:
    """The web page with an answer, as PNG."""
    page = await context.new_page()
    await page.goto(url)
    await page.get_by_text("Ready", exact=True).wait_for()
    await page.get_by_label("Message", exact=True).fill(QUESTION)
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Answer again").wait_for()
    return bytes(await page.screenshot())


async def of_owner(context: Any, url: str) -> bytes:
    """An owner's page, as PNG."""
    page = await context.new_page()
    await page.goto(url)
    await page.locator("#switch:enabled").wait_for()
    return bytes(await page.screenshot())


def small(png: bytes) -> bytes:
    """The same picture in few colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    out = io.BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


@click.command(help=__doc__)
@click.argument("page_url")
@click.argument("owner_url")
@click.option("--browser", default="/usr/bin/chromium", help="The program of a Chromium.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the files.")
def main(page_url: str, owner_url: str, browser: str, out: Path) -> None:
    """Take a picture of each page at each size and in each theme."""
    out.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(page_url, owner_url, browser, out))


if __name__ == "__main__":
    main()
