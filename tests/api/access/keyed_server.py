"""A running API with keys, and questions to it."""

from pathlib import Path

from molink.api import create_app, start_api
from molink.api.access import Access
from molink.api.cluster_routes import add_catalogue_route, add_plan_route
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore
from molink_scheduler.placement import Shortage

MODEL = "tiny/model"
PROMPT = {"prompt": "x", "max_tokens": 2}


class Server:
    """A running API with its keys and clocks."""

    def __init__(self, folder: Path) -> None:
        self.store = KeyStore.open(folder)
        """As `molink key` opens it in another process."""
        self.unix_s, self.now_s = 1_000_000.0, 0.0
        self.keys = LiveKeys(KeyStore.open(folder), clock=lambda: self.unix_s)

    def key(self, **wishes) -> str:
        return self.store.create(self.unix_s, **wishes)[1]

    async def start(self, service, *, required: bool = True, no_keys: bool = False) -> None:
        names = frozenset({"home.example"})
        access = Access(self.keys, required, names, lambda: self.now_s, no_keys=no_keys)
        self.app = create_app(service, access)
        add_plan_route(self.app, MODEL, self._plan)
        add_catalogue_route(self.app, self._catalogue)
        self.runner = await start_api(self.app, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self.runner.cleanup()
        self.keys.store.close()
        self.store.close()

    async def _catalogue(self) -> dict[str, object]:
        return {"pcs": [], "models": []}

    async def _plan(self, split):
        return Shortage(1, 1, 0, "too little")


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def ask(http, server, path, key=None, **headers):
    """Status and error of a GET; the files of the web page have none."""
    headers |= bearer(key) if key is not None else {}
    async with http.get(server.url + path, headers=headers) as response:
        is_json = response.content_type == "application/json"
        return response.status, (await response.json()).get("error") if is_json else None


async def post(http, server, key=None, **headers):
    """Status, error and headers of a request for two tokens."""
    headers |= bearer(key) if key is not None else {}
    async with http.post(f"{server.url}/generate", json=PROMPT, headers=headers) as response:
        return response.status, (await response.json()).get("error"), response.headers
