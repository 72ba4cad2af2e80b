"""What an owner orders, in the terminal or on the page: a limit changed, and the agent told."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from molink.errors import UserError
from molink_agent.limits.card_room import card_mistake
from molink_agent.limits.lend_room import lend_mistake
from molink_agent.limits.limits import SET_COMMAND, UNSET, with_value
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.local_socket import agent_runs, ask_agent
from molink_agent.probe.gpus import VISIBLE_VARIABLE, GpuProbe
from molink_agent.probe.machine import read_machine

CARD_KEYS = ("lend_gpu_gb", "device")
"""Limits that together say which card lends, if any does."""


async def change_limit(data_dir: Path, key: str, value: str) -> list[str]:
    """Change a limit of what is lent, `none` taking it back, and tell the agent if it runs; what
    was done, in sentences.

    Raises UserError for what is no limit or no value, and then nothing was changed.
    """
    await asyncio.to_thread(_set, data_dir, key, value)
    runs = await agent_runs(data_dir)
    answer = await ask_agent(data_dir, {"command": "look"}) if runs else {}
    return list(_confirmation(data_dir, key, value, runs, str(answer.get("shortage") or "")))


def _set(data_dir: Path, key: str, value: str) -> None:
    file = LimitsFile(data_dir)
    limits = with_value(file.read(), key, value)
    mistake = lend_mistake(limits, read_machine(data_dir))
    if key in CARD_KEYS and not mistake:
        mistake = card_mistake(limits, GpuProbe(visible=os.environ.get(VISIBLE_VARIABLE)).read())
    if mistake:
        raise UserError(f"{SET_COMMAND}: {mistake}")
    file.set(key, value)


def _confirmation(data_dir: Path, key: str, value: str, runs: bool, shortage: str) -> Iterator[str]:
    when = "the agent knows" if runs else "it holds when the agent starts"
    is_unset = value.strip().lower() in UNSET
    done = f"{key} is taken back" if is_unset else f"{key} = {value} is saved"
    yield f"{done} in {LimitsFile(data_dir).path}; {when}"
    if shortage:
        yield f"nothing is lent now: {shortage}"
