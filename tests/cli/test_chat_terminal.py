"""`molink chat` on a real terminal: a prompt, Ctrl-C, and two ways to leave."""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

LIMIT_S = 30
"""Only a hung test reaches this."""

CHAT = """
import fcntl, signal, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C typed on this terminal is to be a signal
from molink.cli.client.chat import chat
chat()
"""


def _keep_output_on_ctrl_c(terminal):
    """Else the kernel throws away what chat has written and the test has not read yet."""
    attributes = termios.tcgetattr(terminal)
    attributes[3] |= termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


class Terminal:
    """The user's side of a terminal on which chat runs."""

    def __init__(self, url):
        self._user, own = pty.openpty()
        _keep_output_on_ctrl_c(own)
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
        while text not in self._unread:
            readable, _, _ = select.select([self._user], [], [], LIMIT_S)
            assert readable, f"no {text!r} in {self._unread!r}"
            self._unread += os.read(self._user, 4096).decode()
        self._unread = self._unread.partition(text)[2]

    def press_ctrl_c(self):
        """Once chat waits for something: before that, a signal is seen only at the next key."""
        status = Path(f"/proc/{self.process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "S":
            assert self.process.poll() is None
            time.sleep(0.01)
        self.type("\x03")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._user)


@pytest.fixture
def terminal(url):
    terminal = Terminal(url)
    terminal.wait_for(f"tiny at {url}. /help lists")
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
    terminal.press_ctrl_c()
    terminal.wait_for("[stopped]")
    terminal.wait_for("> ")
    service.holds = False
    terminal.type("again\n")
    terminal.wait_for("0 1 2 ")
    asked = service.requests[1].prompt_token_ids
    prompt = "[user]hello[assistant]0 [user]again"
    assert asked == tuple(ord(char) % 100 for char in prompt)


def test_an_answer_ends_with_its_rate(terminal):
    terminal.type("hello\n")
    terminal.wait_for("3 tokens, ")
    terminal.wait_for(" tokens/s, the first after ")
    assert terminal.process.poll() is None, "it asks for the next question"


def test_ctrl_c_at_the_prompt_only_says_how_to_leave(terminal):
    for _ in range(3):
        terminal.press_ctrl_c()
        terminal.wait_for("leaves.")
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
