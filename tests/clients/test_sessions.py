"""The runner with a small agent and a small library in the place of real ones."""

import json
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from tools.clients.agents import Agent
from tools.clients.cache import Installed
from tools.clients.libraries import Library
from tools.clients.model import ScriptedModel, Trouble
from tools.clients.server import in_front_of, running
from tools.clients.session import FINAL
from tools.clients.sessions import run_first_prompt, run_library, run_session, scratch

SMALL = str(Path(__file__).with_name("small_agent.py"))
CLIENT = Installed(Path(sys.prefix), (Path(sys.executable).parent,))


def agent(fault="has none"):
    def command(place, prompt):
        return [sys.executable, SMALL, place.url, fault]

    return Agent("small", ("small==1",), first=command, more=command)


@pytest.mark.parametrize("fault", ["has none", "has a shell alone"])
def test_a_whole_session_is_right_at_its_end(fault):
    result = run_session(agent(fault), CLIENT, Trouble(is_silent_at=3, silence_s=0.01))
    assert result.passed, result.line()
    assert "20 of 20 steps" in result.tried


def test_a_session_of_one_prompt():
    result = run_session(replace(agent(), more=None), CLIENT, Trouble())
    assert result.passed, result.line()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("shouts", f"garden/plants.txt holds '{FINAL['garden/plants.txt'][:3].upper()}"),
        ("forgets", "it did not show the end of its answer"),
        ("is refused", "refused: /v1/chat/completions 400: 'temperature'"),
    ],
)
def test_what_an_agent_does_wrong_is_told(fault, why):
    result = run_session(agent(fault), CLIENT, Trouble())
    assert not result.passed and why in result.why, result.why


def test_who_does_not_ask_again_fails_where_the_model_does():
    result = run_session(agent(), CLIENT, Trouble(fails_at=2))
    assert "503" in result.why


@pytest.mark.parametrize(
    ("fault", "told", "why"),
    [
        (
            "has none",
            "11 requests, 0 too long, 0.0 s without a byte at most; it said: Half of the garden",
            "",
        ),
        (
            "asks too much",
            "1 requests, 1 too long, 0.0 s without a byte at most; it said: it was refused: ",
            "",
        ),
        ("is refused", "1 requests, 0 too long", "400: 'temperature'"),
    ],
)
def test_only_a_refusal_fails_a_first_prompt_to_another_server(tmp_path, fault, told, why):
    with running(ScriptedModel(tmp_path)) as server:
        result = run_first_prompt(agent(fault), CLIENT, server.url)
    assert told in result.tried and why in result.why and result.passed == (not why)


def test_how_long_a_stream_was_silent_is_told(tmp_path):
    model = ScriptedModel(tmp_path, Trouble(is_silent_at=0, silence_s=0.5))
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    body = {"messages": [{"role": "user", "content": "go"}], "tools": [tool], "stream": True}
    with running(model) as server, in_front_of(server.url) as shown:
        request = urllib.request.Request(
            f"{shown.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert b"[DONE]" in answer.read()
    assert 0.5 <= shown.requests.silence_s < 60


def test_a_library_s_trials_are_told():
    program = (
        "import sys, urllib.request as u; u.urlopen(sys.argv[1] + '/health'); print('ok health')"
    )
    good = Library("l", ("l==2",), lambda place: [[sys.executable, "-c", program, place.url]])
    assert run_library(good, CLIENT).line() == f"pass    {'l==2':48} health"
    bad = Library("l", ("l==2",), lambda place: [[sys.executable, "-c", "print('ok a'); 1 / 0"]])
    assert run_library(bad, CLIENT).why == "after a: ZeroDivisionError: division by zero"


def test_a_service_that_a_client_leaves_behind_is_ended():
    with scratch() as (home, _):
        program = "import time; print('up', flush=True); time.sleep(600)"
        service = subprocess.Popen(
            [sys.executable, "-c", program], env={"HOME": str(home)}, stdout=subprocess.PIPE
        )
        assert service.stdout.readline() == b"up\n"
    assert service.wait(timeout=60) == -signal.SIGKILL
    service.stdout.close()
