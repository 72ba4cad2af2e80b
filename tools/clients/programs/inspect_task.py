"""A task of two questions for Inspect."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def towns():
    ask = "How warm is it in Oldford?"
    return Task(dataset=[Sample(ask, target="21")] * 2, solver=generate(), scorer=includes())
