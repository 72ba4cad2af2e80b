"""How agents come in over HTTP: one sealed request, one sealed answer."""

from aiohttp import web

from molink.coordinator.members.joining import JoinService
from molink.errors import ControlError, JoinRefusedError

__all__ = ["JOIN_PATH", "add_join_route"]

JOIN_PATH = "/agents/join"


def add_join_route(app: web.Application, desk: JoinService) -> None:
    """Serve `POST /agents/join`: 200 with the answer, 403 with the reason, 400 for other things."""

    async def join(request: web.Request) -> web.Response:
        body = await request.read()  # Bounded by the application's own limit.
        try:
            answer = await desk.join(body)
        except JoinRefusedError as error:
            return _refusal(str(error), 403)
        except ControlError as error:
            return _refusal(str(error), 400)
        return web.Response(body=answer, content_type="application/json")

    app.add_routes([web.post(JOIN_PATH, join)])


def _refusal(message: str, status: int) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)
