"""A server of weights with no ring behind it, for measuring downloads.

    MOLINK_WEIGHTS_TOKEN=... python -m tools.experiments.weights.serve_weights MODEL CACHE

Prints a line of JSON with its URL once the manifest is there. `GET /sent` says how many bytes of
files have gone out.
"""

import asyncio
import json
from pathlib import Path

import click
from aiohttp import web

from molink.agents_api.offered_files import OfferedFiles
from molink.agents_api.weights_routes import WeightsRoutes, add_weights_routes
from molink.api.errors import errors_in_shape
from molink.api.server import start_api
from molink.checkpoint.checkpoint import open_checkpoint

__all__ = ["main"]


@click.command()
@click.argument("model")
@click.argument("cache", type=click.Path(path_type=Path))
@click.option("--port", default=0, help="0: any that is free.")
@click.option("--mbps", type=float, help="Cap of all downloads together.")
@click.option("--token", envvar="MOLINK_WEIGHTS_TOKEN", required=True, help="Who may download.")
def main(model: str, cache: Path, port: int, mbps: float | None, token: str) -> None:
    """Serve a model's files until the process is ended."""
    asyncio.run(_serve(model, cache, port, mbps, token))


async def _serve(model: str, cache: Path, port: int, mbps: float | None, token: str) -> None:
    offered = OfferedFiles(open_checkpoint(model), cache, name=Path(model).name)
    app = web.Application(middlewares=[errors_in_shape])
    rate = None if mbps is None else mbps * 1e6 / 8
    routes = add_weights_routes(
        app, offered, lambda given: given if given == token else None, bytes_per_s_max=rate
    )
    app.router.add_get("/sent", lambda request: _sent(routes))
    runner = await start_api(app, "127.0.0.1", port)
    await offered.start()
    try:
        await offered.ready()
        print(json.dumps({"url": f"http://127.0.0.1:{runner.addresses[0][1]}/weights"}), flush=True)
        await asyncio.Event().wait()
    finally:
        await offered.close()
        await runner.cleanup()


async def _sent(routes: WeightsRoutes) -> web.Response:
    return web.json_response({"bytes": routes.bytes_sent})


if __name__ == "__main__":
    main()
