"""`molink serve MODEL`: a ring of stage processes on this machine, behind the REST API."""

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from molink.cli.help.sections import SERVE as SECTIONS
from molink.cli.options import model_argument, settings_options
from molink.cli.watching import Watching, watch_options
from molink.config.setting import settings_of
from molink.config.settings import ServeSettings
from molink.terminal.command_line import SectionedCommand

if TYPE_CHECKING:
    from pathlib import Path

    from aiohttp import web

    from molink.api.access import Access
    from molink.api.metrics.route import Metrics
    from molink.config.groups import ApiSettings, ModelSettings
    from molink.coordinator.cluster import Cluster
    from molink.terminal.status_line import StatusLine

WHERE = """\
A chat, in a browser: {url}/
For clients of OpenAI: {url}/v1
All of it, live: molink dashboard --url {url}"""
"""What a person does next."""

BEGUN = "Starting {model} on {nodes} stages: reading the model, some seconds."

NODES_DEFAULT = 3
"""The smallest ring with a stage that is neither head nor tail."""


@click.command(cls=SectionedCommand, sections=SECTIONS)
@model_argument()
@settings_options(ServeSettings)
@watch_options
def serve(nodes: int | None, watching: Watching, **options: Any) -> None:
    """Serve MODEL: a local directory, a Hugging Face hub id, or `demo`."""
    from molink.tasks import until_stopped

    if nodes is None:
        nodes = _nodes_of(options["layers"])
    settings = settings_of(ServeSettings, nodes=nodes, log_format=watching.log_format, **options)
    asyncio.run(until_stopped(_serve(settings, watching)))


def _nodes_of(layers: str | None) -> int:
    """One node for each range of --layers."""
    return layers.count(",") + 1 if layers is not None else NODES_DEFAULT


def users_app(
    api: "ApiSettings",
    served: "ModelSettings",
    cluster: "Cluster",
    access: "Access",
    metrics: "Metrics",
    directory: "Path",
) -> "web.Application":
    """The application that answers a cluster's users and operators; batches lie in the
    directory."""
    from molink.api import create_app
    from molink.api.admin import add_admin_routes
    from molink.api.backend import Backend
    from molink.api.chat import ChatFormat
    from molink.api.openai.batches.endpoint import add_batch_routes
    from molink.api.openai.logprobs import TokenTexts

    tokenizer, service = cluster.service.card.tokenizer, cluster.service
    chat_format = ChatFormat.of(tokenizer, served.tool_parser, served.reasoning_parser)
    app = create_app(
        service,
        access,
        chat_format=chat_format,
        strict=api.strict,
        shares_cache=api.shared_cache,
        metrics=metrics,
        live=cluster.live,
    )
    add_admin_routes(app, cluster.admin)
    add_batch_routes(app, Backend(service, TokenTexts(service), chat_format), directory)
    return app


async def _serve(settings: ServeSettings, watching: Watching) -> None:
    """Serve until cancelled. Raises StageError or UserError when no ring stands at first."""
    from molink.api.server import check_port_free
    from molink.cli.cluster_status import announcing_end

    check_port_free(settings.host, settings.port)
    shown = watching.status_line()
    stages = settings.nodes * max(1, len(settings.roles))
    if watching.shows_progress:
        shown.hint(BEGUN.format(model=settings.served.model, nodes=stages))
    async with AsyncExitStack() as stack:
        with announcing_end(shown):
            await _run(settings, watching, shown, stack)


async def _run(
    settings: ServeSettings, watching: Watching, shown: "StatusLine", stack: AsyncExitStack
) -> None:
    from molink.api import start_api
    from molink.api.access import open_access
    from molink.api.headers.cors import CorsRules
    from molink.api.metrics.route import Metrics
    from molink.cli.cluster_status import show_news, until_loaded
    from molink.cli.own_server import api_tls
    from molink.config.data_dir import data_dir
    from molink.coordinator.local.start import start_local
    from molink.terminal.tables import DATA_FOLDER

    cors, directory = CorsRules.of(settings.api.cors_origins), data_dir(DATA_FOLDER)
    access = await stack.enter_async_context(
        open_access(
            settings.host,
            directory,
            settings.api.allowed_hosts,
            no_keys=settings.api.no_keys,
            make=False,
            cors=cors,
        )
    )
    cluster = await stack.enter_async_context(start_local(settings))
    metrics = Metrics(cluster.service)
    await stack.enter_async_context(watching.recording(cluster, metrics))
    await until_loaded(cluster, settings.nodes, shown=watching.shows_progress)
    app = users_app(settings.api, settings.served, cluster, access, metrics, directory)
    tls = api_tls(settings.api, directory, access)
    runner = await start_api(app, settings.host, settings.port, tls, data_dir=directory)
    stack.push_async_callback(runner.cleanup)
    scheme = "http" if tls is None else "https"
    url = f"{scheme}://{settings.host}:{runner.addresses[0][1]}"
    shown.result(f"ready {url}")
    shown.hint(WHERE.format(url=url))
    shown.hint(access.rules)
    await show_news(cluster.news, shown, after_start=not watching.is_json)
