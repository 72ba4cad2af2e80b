"""`molink cache clear`: what it asks of a server, as whom, and what it says."""

import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from aiohttp import web
from click.testing import CliRunner

from molink.api import create_app
from molink.api.access import Access
from molink.api.admin import add_admin_routes
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KeyStore
from molink.cli.main import cli
from molink.config.data_dir import api_socket
from molink.control.private_file import private_socket
from molink.errors import UserError
from molink.report.orders import CachesCleared
from tests.scripted_server import CountingService, running


@dataclass
class Rings:
    """An operator's orders, of which only one is given here."""

    rings: object
    cleared: int = 0
    by: str = ""

    def clear_caches(self, by):
        self.cleared, self.by = self.cleared + 1, by
        return CachesCleared(self.rings)

    drain = resume = remove = clear_caches


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("MOLINK_API_KEY", raising=False)
    return tmp_path / "molink"


def clear(url, *more):
    words = ("cache", "clear", "--url", url, *more)
    return CliRunner().invoke(cli, words, catch_exceptions=False).stdout


@pytest.fixture
def serve(home):
    """Runs a server that clears so many rings, and answers its owner in a data directory."""

    @contextmanager
    def start(admin, data_dir=home):
        with closing(KeyStore.open(home)) as store:
            app = create_app(CountingService(), Access(LiveKeys(store)))
            add_admin_routes(app, admin)
            with running(app, data_dir) as url:
                yield url

    return start


def get_status(url):
    with urlopen(f"{url}/cluster") as answer:
        return answer.status


@pytest.mark.parametrize(
    ("rings", "sentence"),
    [
        (0, "No ring serves, so nothing is cached.\n"),
        (1, "The prefix cache of 1 ring is cleared.\n"),
        (2, "The prefix cache of 2 rings is cleared.\n"),
    ],
)
def test_one_sentence_says_what_was_cleared(serve, rings, sentence):
    admin = Rings(rings)
    with serve(admin) as url:
        assert clear(url) == sentence
    assert admin.cleared == 1


def test_the_command_makes_itself_a_key_that_nobody_else_counts(serve, home):
    admin = Rings(1)
    with serve(admin) as url:
        clear(url)
        assert list(home.glob("api-*.sock")) and get_status(url) == 200
        with closing(KeyStore.open(home)) as store:
            assert store.list_keys() == []
    assert admin.by and not list(home.glob("api-*.sock"))


def test_without_the_data_directory_it_needs_a_key(serve, home, tmp_path):
    admin = Rings(1)
    with serve(admin, tmp_path / "elsewhere") as url:
        with pytest.raises(UserError, match="An order wants an admin key"):
            clear(url)
        with closing(KeyStore.open(home)) as store:
            key = store.create(time.time(), scope="admin")[1]
        assert "1 ring" in clear(url, "--key", key)


def test_whoever_else_listens_at_the_port_is_sent_no_key(home):
    """A socket of a server that was killed is no proof."""
    seen = []

    async def listen(request):
        seen.append(dict(request.headers))
        return web.json_response({"rings": 1})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", listen)
    home.mkdir()
    with running(app) as url:
        port = urlsplit(url).port
        private_socket(api_socket(home, port)).close()
        clear(url)
    assert len(seen) == 1 and "Authorization" not in seen[0] and "X-Api-Key" not in seen[0]


def test_a_key_that_the_server_does_not_know_clears_nothing(serve):
    admin = Rings(1)
    with serve(admin) as url, pytest.raises(UserError, match="does not know your key"):
        clear(url, "--key", "molink-sk-x")
    assert not admin.cleared


def test_an_unreachable_server_is_one_sentence():
    with pytest.raises(UserError, match=r"cannot reach http://127\.0\.0\.1:1: check"):
        clear("http://127.0.0.1:1")


def test_an_answer_that_is_not_molinks_is_one_sentence(serve):
    with serve(Rings(None)) as url, pytest.raises(UserError, match="not MoLink's"):
        clear(url)


def test_a_server_without_orders_is_one_sentence(home):
    with closing(KeyStore.open(home)) as store:
        app = create_app(CountingService(), Access(LiveKeys(store)))
        with running(app, home) as url, pytest.raises(UserError, match="nothing at /cluster/cache"):
            clear(url)
