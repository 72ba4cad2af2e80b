"""Runs of consecutive numbers, as `range`s in order: blocks that stand or were named in a row.

Numbers of a prompt's blocks follow one another nearly always, so lists of them travel and are kept
as runs: first number, how many.

Pure.
"""

from collections.abc import Iterable, Sequence


def number_runs(numbers: Iterable[int]) -> list[range]:
    """Numbers as runs of consecutive ones."""
    runs: list[range] = []
    start = stop = 0
    for number in numbers:
        if number != stop or start == stop:
            if start < stop:
                runs.append(range(start, stop))
            start = number
        stop = number + 1
    return [*runs, range(start, stop)] if start < stop else runs


def join_runs(runs: Iterable[range]) -> list[range]:
    """Runs, of which those that follow one another are one."""
    joined: list[range] = []
    for run in runs:
        if joined and joined[-1].stop == run.start:
            joined[-1] = range(joined[-1].start, run.stop)
        else:
            joined.append(run)
    return joined


def cut_runs(runs: Sequence[range], count: int) -> tuple[list[range], list[range]]:
    """The first `count` numbers of some runs, and the others."""
    for place, run in enumerate(runs):
        if count < len(run):
            first = [*runs[:place], run[:count]] if count else [*runs[:place]]
            return first, [run[count:], *runs[place + 1 :]]
        count -= len(run)
    return [*runs], []


def named_runs(runs: Iterable[range]) -> tuple[tuple[int, int], ...]:
    """Runs as messages name them: (first number, how many)."""
    return tuple([(run.start, len(run)) for run in runs])
