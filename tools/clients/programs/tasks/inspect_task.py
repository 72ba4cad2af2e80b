"""Tasks of two questions for Inspect: with words alone, and with a tool."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolFunction, tool

ASK = "How warm is it in Oldford?"


@tool
def get_weather():
    async def execute(town: str):
        """Weather of a town.

        Args:
            town: Its name.
        """
        return f"{town}: 21 degrees"

    return execute


def _asked(*solvers):
    samples = [Sample(ASK, target="21", id=number) for number in (1, 2)]
    return Task(dataset=samples, solver=solvers, scorer=includes())


@task
def towns():
    return _asked(generate())


@task
def towns_by_tool():
    return _asked(use_tools(get_weather()), generate())


@task
def towns_by_forced_tool():
    named = ToolFunction(name="get_weather")
    return _asked(use_tools(get_weather(), tool_choice=named), generate())
