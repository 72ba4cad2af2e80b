"""A list of nodes asks the coordinator that runs, and does without one that does not."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from molink.cli.live_nodes import live_nodes

BODY = {"nodes": [{"id": "a", "state": "serving"}]}


@pytest.fixture
def coordinator():
    """Answers with what a test puts there; yields its port."""

    class Answers(BaseHTTPRequestHandler):
        body = json.dumps(BODY).encode()

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.body)

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Answers, server.server_address[1]
        server.shutdown()


def test_the_coordinator_of_this_machine_is_asked_whatever_its_public_name(coordinator):
    _, port = coordinator
    assert live_nodes(f"http://name.invalid:{port}") == {"a": BODY["nodes"][0]}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"nodes": [{}]}', b'{"model": "demo"}'])
def test_what_is_no_coordinator_is_none(coordinator, body):
    answers, port = coordinator
    answers.body = body
    assert live_nodes(f"http://127.0.0.1:{port}") is None


@pytest.mark.parametrize("url", [None, "", "http://127.0.0.1:9", "file:///etc/passwd"])
def test_nobody_answers(url):
    assert live_nodes(url) is None
