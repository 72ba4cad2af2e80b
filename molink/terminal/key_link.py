"""Link that opens the web page with somebody's key, as text and as a QR code for phones.

The key stands in the link's fragment, which browsers send to nobody: no server, proxy or log sees
it, and the page takes it out of the address at once.
"""

import io
import sys
from urllib.parse import quote, urlsplit

from molink.errors import UserError

NO_CODE = "(pip install segno draws a QR code of it here)"


def key_link(url: str, secret: str) -> str:
    """The link to the page at `url`, the API's own or OpenAI's base URL. Raises UserError for what
    is no URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"--url takes a URL such as https://chat.example:8000, got {url!r:.100}.")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}/#key={quote(secret, safe='')}"


def qr_code(text: str) -> str:
    """Lines of half blocks that a phone's camera reads, dark on light in any terminal."""
    try:
        import segno
    except ImportError:
        return NO_CODE
    out = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(out, border=2, compact=True)
    return out.getvalue().rstrip("\n")


def can_show_blocks() -> bool:
    """Whether the terminal behind stderr is one, and shows half blocks."""
    return sys.stderr.isatty() and "utf" in (sys.stderr.encoding or "").lower()
