"""The agent is a guest on somebody's PC: it must stay small, so it never loads torch."""

import os
import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys
import molink_agent
names = [one.name for one in pkgutil.walk_packages(molink_agent.__path__, "molink_agent.")]
assert len(names) > 20, names
for name in names:
    importlib.import_module(name)
print(*sorted({"torch", "transformers", "numpy"} & set(sys.modules)))
"""


def test_no_module_of_the_agent_loads_torch():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment,
    )
    assert "torch" not in asked.stdout.split()
    assert "transformers" not in asked.stdout.split()
