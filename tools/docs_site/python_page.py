"""The reference of the Python that a reader would import: the scheduler's core and the simulator.

Mkdocstrings reads signatures and docstrings from the source, without importing it. The runtime is
left out: it is used as a command or over HTTP, and changes without notice.
"""

__all__ = ["ROOMS", "python_page"]

INTRODUCTION = """\
# Python

What the packages `molink_scheduler` and `molink_sim` offer to who imports them. The scheduler takes
what happened and answers what to do, without clock, sockets or torch; the simulator drives it in
virtual time ([simulator](simulator.md)). Names end in their unit where there could be doubt (`_s`
seconds, `_bytes`). No release promises yet that they stay as they are.
"""

ROOMS = {
    "Head and stages": (
        "molink_scheduler.head.scheduler",
        "molink_scheduler.head.settings",
        "molink_scheduler.stage.core",
        "molink_scheduler.events",
        "molink_scheduler.batch",
        "molink_scheduler.request",
    ),
    "Links": (
        "molink_scheduler.link.sender",
        "molink_scheduler.link.pacer",
        "molink_scheduler.link.estimator",
    ),
    "Placement": (
        "molink_scheduler.placement.cluster",
        "molink_scheduler.placement.plan",
    ),
    "Simulator": (
        "molink_sim.scenario",
        "molink_sim.even_ring",
        "molink_sim.workload",
        "molink_sim.simulate",
        "molink_sim.outcome",
        "molink_sim.replay",
    ),
}
"""Modules by the heading under which they stand."""


def python_page() -> str:
    """All rooms as Markdown that mkdocstrings fills in."""
    parts = [INTRODUCTION]
    for title, modules in ROOMS.items():
        parts += [f"## {title}", *(f"::: {module}" for module in modules)]
    return "\n\n".join(parts) + "\n"
