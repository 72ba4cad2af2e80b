"""`molink up MODEL`: a coordinator for agents; nothing is computed here."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molink.cli.help.sections import UP as SECTIONS
from molink.cli.options import model_argument, settings_options
from molink.cli.serve import WHERE
from molink.cli.upkeep.taking_over import check_old, copy_cluster, runs
from molink.cli.watching import Watching, watch_options
from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from molink.terminal.command_line import SectionedCommand

if TYPE_CHECKING:
    from molink.api.access import Access
    from molink.api.headers.cors import CorsRules
    from molink.api.metrics.route import Metrics
    from molink.checkpoint.checkpoint import Checkpoint
    from molink.cli.upkeep.listening import Listening
    from molink.control.registry.registry import Registry
    from molink.control.registry.succession import Ports
    from molink.coordinator.cluster import Cluster
    from molink.coordinator.start import Coordinator
    from molink.terminal.status_line import StatusLine

INVITE_S = 24 * 3600.0
INVITE_USES_MIN = 5
"""The printed invite is as `molink invite` makes them; for more PCs at a start, as many uses."""

NEXT_STEP = (
    "Type that line, whole, on each PC that shall help; MoLink must be installed there. It lets "
    "{uses} PCs in within {hours:.0f} hours, `molink invite` prints another. Ctrl-C ends this in "
    "order; who has joined stays a member."
)
HANDED = (
    "It has no PCs of its own: `molink node move NAME --data-dir {old}` hands it those of the "
    "coordinator that it replaces; new ones join there until that has ended."
)


@click.command(cls=SectionedCommand, sections=SECTIONS)
@model_argument()
@settings_options(UpSettings)
@watch_options
def up(data_dir: str | None, public_host: str, watching: Watching, **options: Any) -> None:
    """Serve MODEL over the PCs that join: a local directory, a Hugging Face hub id, or `demo`.

    Prints the command with which a PC joins. Requests are answered with 503 and the reason until
    enough PCs are there.
    """
    from molink.config.data_dir import data_dir as data_folder
    from molink.tasks import until_stopped
    from molink.terminal.tables import DATA_FOLDER
    from molink.transport.paths.direct import home_addresses

    directory = data_folder(DATA_FOLDER, data_dir)
    host = options["host"]
    if not public_host:
        public_host = host if host != "0.0.0.0" else next(iter(home_addresses()), "127.0.0.1")
    settings = settings_of(UpSettings, data_dir=directory, public_host=public_host, **options)
    asyncio.run(until_stopped(_up(settings, watching)))


async def _up(settings: UpSettings, watching: Watching) -> None:
    """Run until cancelled by a signal. Raises ControlError when the broker refuses us."""
    from molink.cli.cluster_status import announcing_end

    with watching.status_line() as shown:
        shown.status(f"Starting, and reading {settings.served.model}: some seconds.")
        async with AsyncExitStack() as stack:
            with announcing_end(shown):
                await _serve(settings, watching, shown, stack)


async def _serve(
    settings: UpSettings, watching: Watching, shown: "StatusLine", stack: AsyncExitStack
) -> None:
    from molink.api.headers.cors import CorsRules
    from molink.api.metrics.route import Metrics
    from molink.coordinator.start import start_coordinator

    port, agents_port = _ports(settings)
    is_beside = bool(settings.replaces) and await asyncio.to_thread(_copy_old, settings)
    cors = CorsRules.of(settings.api.cors_origins)
    coordinator = await stack.enter_async_context(start_coordinator(settings, port, agents_port))
    cluster = coordinator.cluster
    access = await stack.enter_async_context(_access(settings, cors))
    metrics = Metrics(cluster.service)
    await stack.enter_async_context(watching.recording(cluster, metrics))
    agents = await _start_agents_api(settings, coordinator, agents_port, stack)
    users = await _start_users_api(settings, coordinator, access, metrics, port, stack)
    if settings.replaces:
        await _take_over(settings, coordinator, (users, agents), shown, stack)
    if is_beside:
        _announce_beside(settings, port, shown)
    else:
        _announce(coordinator.registry, settings, port, shown)
    if access.hint is not None:
        shown.hint(access.hint)
    shown.hint(access.rules)
    ready_url = settings.api_url(port) if settings.wait else None
    await _show(cluster, ready_url, shown)


def _copy_old(settings: UpSettings) -> bool:
    """Have the cluster of the coordinator that is replaced; whether that one runs. Raises UserError
    where it cannot be."""
    old, new = Path(settings.replaces), settings.data_dir
    check_old(old, new, settings.host, api_tls=settings.api.api_tls)
    copy_cluster(old, new)
    return runs(old)


def _ports(settings: UpSettings) -> tuple[int, int]:
    """Ports of the API and of what agents ask. Raises UserError for one that somebody else has."""
    from molink.api.server import check_port_free, free_ports

    for option, wanted in settings.ports():
        check_port_free(settings.host, wanted, option)
    free = free_ports(settings.host, 2)
    return settings.port or free[0], settings.agents_port or free[1]


def _access(settings: UpSettings, cors: "CorsRules") -> AbstractAsyncContextManager["Access"]:
    from molink.api.access import open_access

    return open_access(
        settings.host,
        settings.data_dir,
        (settings.public_host, *settings.api.allowed_hosts),
        no_keys=settings.api.no_keys,
        make=True,
        cors=cors,
    )


async def _start_agents_api(
    settings: UpSettings, coordinator: "Coordinator", port: int, stack: AsyncExitStack
) -> "Listening":
    """Let agents join, and fetch weights; ended with the stack."""
    from molink.agents_api.app import create_agents_app
    from molink.agents_api.offered_files import OfferedFiles
    from molink.api import start_api
    from molink.cli.upkeep.listening import Listening
    from molink.serving.served_model import public_name
    from molink.succession.pcs import JoinsLedOn, downloads_led_on

    async def offer(checkpoint: "Checkpoint", name: str) -> OfferedFiles:
        files = OfferedFiles(checkpoint, settings.data_dir / "weights", name=name)
        await files.start()
        stack.push_async_callback(files.close)
        return files

    cluster, drafter = coordinator.cluster, coordinator.drafter
    offered = await offer(coordinator.checkpoint, cluster.service.model.name)
    app = create_agents_app(
        JoinsLedOn(coordinator.joining, coordinator.registry),
        offered,
        coordinator.registry.pc_of_token,
        cluster.given_by,
        coordinator.made_wait,
        drafter=None if drafter is None else await offer(drafter, public_name(drafter.name)),
        bytes_per_s_max=settings.weights_bytes_per_s,
        thanks_for=lambda pc, agrees: cluster.thanks.report(pc, agrees=agrees),
    )
    app.middlewares.append(downloads_led_on(coordinator.registry))
    tls, kept = coordinator.agents_tls, settings.data_dir
    runner = await start_api(app, settings.host, port, tls, "--agents-port", data_dir=kept)
    stack.push_async_callback(runner.cleanup)
    return Listening(runner, tls, kept)


async def _start_users_api(
    settings: UpSettings,
    coordinator: "Coordinator",
    access: "Access",
    metrics: "Metrics",
    port: int,
    stack: AsyncExitStack,
) -> "Listening":
    """Answer users and operators; ended with the stack."""
    from molink.api import start_api
    from molink.api.cell import add_cell_routes
    from molink.api.cluster_routes import add_catalogue_route, add_plan_route
    from molink.cli.own_server import api_tls
    from molink.cli.serve import users_app
    from molink.cli.upkeep.listening import Listening
    from molink.control.registry.succession import successor_of
    from molink.succession.users import users_led_on

    cluster, data_dir = coordinator.cluster, settings.data_dir
    service = cluster.service
    app = users_app(settings.api, settings.served, cluster, access, metrics, data_dir)
    add_plan_route(app, cluster.service.model.name, coordinator.plan)
    add_catalogue_route(app, coordinator.catalogue)
    assert cluster.cell is not None, "agents may be of one LAN"
    add_cell_routes(app, cluster.cell)
    successor = partial(successor_of, coordinator.registry)
    app.middlewares.append(
        users_led_on(successor, lambda: service.unready_reason == service.handed_over)
    )
    tls = api_tls(settings.api, data_dir, access)
    runner = await start_api(app, settings.host, port, tls, data_dir=data_dir)
    stack.push_async_callback(runner.cleanup)
    stack.callback(cluster.live.freeze)  # Answers that this cuts short go on at the next start.
    return Listening(runner, tls, data_dir)


async def _take_over(
    settings: UpSettings,
    coordinator: "Coordinator",
    listening: tuple["Listening", "Listening"],
    shown: "StatusLine",
    stack: AsyncExitStack,
) -> None:
    """Be known to the coordinator that is replaced, and listen where it did once it has ended."""
    from molink.cli.upkeep.taking_over import TakingOver, check_sockets
    from molink.control.broker.embedded import EmbeddedBroker
    from molink.control.registry.succession import Successor
    from molink.tasks import background_tasks

    users, agents = listening
    names = coordinator.cluster.service.model.names
    folder = str(settings.data_dir.absolute())
    own = Successor(folder, users.port, agents.port, tuple(names))
    check_sockets(own)

    async def listen(ports: "Ports") -> None:
        for port in ports.agents:
            await agents.also_at(settings.host, port)
        for port in ports.api:
            await users.also_at(settings.host, port)
        assert isinstance(coordinator.broker, EmbeddedBroker), "--replaces takes no other"
        for port in ports.broker:
            await coordinator.broker.also_at(port)
        for port in sorted(ports.api - {users.port}):
            shown.result(f"listening {settings.api_url(port)}")

    tasks = await stack.enter_async_context(background_tasks())
    taking = TakingOver(Path(settings.replaces), own, coordinator.registry, listen)
    tasks.create_task(taking.run())


def _announce(registry: "Registry", settings: UpSettings, port: int, shown: "StatusLine") -> None:
    import time

    from molink.errors import MolinkError

    uses = max(INVITE_USES_MIN, settings.min_nodes)
    shown.result(f"listening {settings.api_url(port)}")
    try:
        invite = registry.make_invite(INVITE_S, uses, "", time.time(), at_start=True)
    except MolinkError as error:  # Too many are usable, or the disk is full: others may still do.
        shown.hint(f"No new invite: {error}")
        return
    shown.result(f"molink agent join {invite.text}")
    shown.hint(WHERE.format(url=settings.api_url(port)))
    shown.hint(NEXT_STEP.format(uses=uses, hours=INVITE_S / 3600))


def _announce_beside(settings: UpSettings, port: int, shown: "StatusLine") -> None:
    shown.result(f"listening {settings.api_url(port)}")
    shown.hint(WHERE.format(url=settings.api_url(port)))
    shown.hint(HANDED.format(old=settings.replaces))


async def _show(cluster: "Cluster", ready_url: str | None, shown: "StatusLine") -> None:
    """Show what changes, until cancelled; and `ready URL`, if wanted, when a ring serves."""
    from molink.cli.cluster_status import show_news
    from molink.tasks import background_tasks

    async with background_tasks() as tasks:
        if ready_url is not None:
            tasks.create_task(_show_ready(cluster, ready_url, shown))
        await show_news(cluster.news, shown)


async def _show_ready(cluster: "Cluster", url: str, shown: "StatusLine") -> None:
    await cluster.service.until_ready()
    shown.result(f"ready {url}")
