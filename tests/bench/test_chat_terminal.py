"""`molink chat` on a real terminal: a prompt, Ctrl-C, and two ways to leave."""

import os
import pty
import select
import subprocess
import sys

import pytest

LIMIT_S = 30
"""Only a hung test reaches this."""

CHAT = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C typed on this terminal is to be a signal
from molink.cli.client import chat
chat()
"""


class Terminal:
    """The user's side of a terminal on which chat runs."""

    def __init__(self, url):
        self._user, own = pty.openpty()
        self._unread = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHAT, "--url", url, "--max-tokens", "3"],
            stdin=own,
            stdout=own,
            stderr=own,
            start_new_session=True,
        )
        os.close(own)

    def type(self, text):
        os.write(self._user, text.encode())

    def wait_for(self, text):
        """Read on until `text` has been shown."""
        assert self.shows(text, LIMIT_S), f"no {text!r} in {self._unread!r}"

    def shows(self, text, within_s):
        """Whether `text` is shown before the terminal has been silent for `within_s`."""
        while text not in self._unread:
            if not select.select([self._user], [], [], within_s)[0]:
                return False
            self._unread += os.read(self._user, 4096).decode()
        self._unread = self._unread.partition(text)[2]
        return True

    def press_until(self, key, text):
        """Press a key, again if need be: Python's input() misses a Ctrl-C just after its prompt."""
        for _ in range(LIMIT_S):
            self.type(key)
            if self.shows(text, within_s=1):
                return
        raise AssertionError(f"no {text!r} in {self._unread!r}")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._user)


@pytest.fixture
def terminal(url):
    terminal = Terminal(url)
    terminal.wait_for("> ")
    yield terminal
    terminal.close()


@pytest.mark.parametrize("leave", ["/exit\n", "\x04"])
def test_an_answer_and_leaving(terminal, leave):
    terminal.type("hello\n")
    terminal.wait_for("0 1 2 ")
    terminal.wait_for("> ")
    terminal.type(leave)
    assert terminal.process.wait(LIMIT_S) == 0


def test_ctrl_c_stops_the_answer_and_not_the_conversation(terminal, service):
    service.holds = True
    terminal.type("hello\n")
    terminal.wait_for("0 ")
    terminal.type("\x03")
    terminal.wait_for("[stopped]")
    terminal.wait_for("> ")
    service.holds = False
    terminal.type("again\n")
    terminal.wait_for("0 1 2 ")
    asked = service.requests[1].prompt_token_ids
    prompt = "[user]hello[assistant]0 [user]again"
    assert asked == tuple(ord(char) % 100 for char in prompt)


def test_ctrl_c_at_the_prompt_only_says_how_to_leave(terminal):
    terminal.press_until("\x03", "leaves.")
    terminal.wait_for("> ")
    assert terminal.process.poll() is None


def test_a_refused_message_is_said_and_forgotten(terminal, service):
    service.unready_reason = "Stage 2 is loading."
    terminal.type("hello\n")
    terminal.wait_for("molink: Stage 2 is loading.")
    terminal.wait_for("> ")
    service.unready_reason = None
    terminal.type("again\n")
    terminal.wait_for("0 1 2 ")
    prompt = "[user]again"
    assert service.requests[0].prompt_token_ids == tuple(ord(char) % 100 for char in prompt)
