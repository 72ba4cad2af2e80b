"""`molink cache clear`: what it asks of a server, and what it says."""

from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from molink.api import create_app
from molink.api.admin import add_admin_routes
from molink.cli.main import cli
from molink.errors import UserError
from tests.scripted_server import CountingService, running


@dataclass
class Rings:
    """An operator's orders, of which only one is given here."""

    rings: object
    cleared: int = 0

    def clear_caches(self, by):
        self.cleared += 1
        return {"rings": self.rings}

    drain = resume = remove = clear_caches


def clear(url, *more):
    words = ("cache", "clear", "--url", url, *more)
    return CliRunner().invoke(cli, words, catch_exceptions=False).stdout


@pytest.fixture
def serve():
    """Runs a server that clears so many rings."""

    def start(admin):
        app = create_app(CountingService())
        add_admin_routes(app, admin)
        return running(app)

    return start


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


def test_a_server_without_orders_is_one_sentence(url):
    with pytest.raises(UserError, match="nothing at /cluster/cache/clear"):
        clear(url)
