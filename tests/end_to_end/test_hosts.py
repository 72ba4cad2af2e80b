"""A ring whose stages listen at addresses of their own."""

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

STAGES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
COORDINATOR = "127.0.0.5"
PROMPT = [5, 17, 23, 8]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 on loopback"
)


@pytest.fixture(autouse=True)
def link_memory(tmp_path, monkeypatch):
    """The file of known links, instead of the user's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "molink" / "link_memory.json"


def hosts_file(tmp_path, *stages: str) -> str:
    file = tmp_path / "hosts.toml"
    tables = "".join(f"\n[[stage]]\n{stage}\n" for stage in stages)
    file.write_text(f'coordinator_address = "{COORDINATOR}"\n{tables}')
    return str(file)


def relative_to_here(path: Path) -> str:
    return os.path.relpath(path)


def listening(pid: int) -> set[str]:
    connections = psutil.Process(pid).net_connections(kind="tcp")
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


async def test_a_ring_over_several_addresses_answers_as_transformers_does(
    tools, tiny_llama, tmp_path, link_memory
):
    """And its links are known afterwards, whatever was in their file before."""
    link_memory.parent.mkdir(parents=True)
    link_memory.write_text("no JSON")
    wrapped = f'address = "{STAGES[1]}"\ncommand = ["env", "SOME=thing"]'
    elsewhere = 'command = ["sh", "-c", "cd / && exec \\"$@\\"", "sh"]'
    first, last = f'address = "{STAGES[0]}"', f'address = "{STAGES[2]}"\n{elsewhere}'
    file = hosts_file(tmp_path, first, wrapped, last)
    with tools.serving(
        relative_to_here(tiny_llama), "--hosts", file, "--dtype", "float32", forks=False
    ) as server:
        body = {"prompt_token_ids": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        status, answer = await tools.post(server.url, "/generate", body)
        stages = (await tools.get(server.url, "/cluster"))["stages"]
        assert [listening(stage["pid"]) for stage in stages] == [{one} for one in STAGES]
        assert COORDINATOR in listening(server.process.pid)
        assert psutil.Process(stages[1]["pid"]).environ()["SOME"] == "thing"
        assert psutil.Process(stages[2]["pid"]).cwd() == "/"
    assert status == 200
    [expected] = tools.greedy_reference(tiny_llama, [PROMPT], 12)
    assert answer["token_ids"] == expected
    around = zip((COORDINATOR, *STAGES, STAGES[2]), (*STAGES, STAGES[0], COORDINATOR), strict=True)
    assert set(json.loads(link_memory.read_text())) == {f"{a} -> {b}" for a, b in around}
    assert sum("link_memory.json cannot be read" in line for line in server.stderr) == 1


HERE = 'address = "127.0.0.2"'
NOWHERE = 'address = "192.0.2.77"'
"""Set aside for documentation: no machine has it."""


def test_hosts_that_cannot_be_are_refused(tools, tiny_llama, tmp_path):
    cases = [
        ([HERE], ("--nodes", "2"), "1 stages for 2 nodes"),
        ([HERE], ("--link", "100:30"), "--link"),
        ([NOWHERE, HERE], (), "Cannot listen at 192.0.2.77"),
        ([f'{HERE}\ncommand = ["no-such-program"]'], (), "no-such-program"),
        ([f'{HERE}\ncommand = ["false"]'], (), "stage 0"),
    ]
    lines = []
    for number, (stages, options, _) in enumerate(cases):
        (folder := tmp_path / str(number)).mkdir()
        lines.append(("--hosts", hosts_file(folder, *stages), *options))
    lines.append(("--hosts", str(tmp_path / "none.toml")))
    *found, of_no_file = tools.refusals(
        [("serve", str(tiny_llama), "--port", "0", *line) for line in lines]
    )
    assert [says for (_, _, says), said in zip(cases, found, strict=True) if says not in said] == []
    assert of_no_file.count("\n") == 1 and "No such file" in of_no_file
