"""What is answered before there is a model: that it is loading.

The checks before a body is read are application.py's and hold as always. Of those after it the ones
that need no model come first, so that a client that asks wrongly learns that and not to wait: the
body is JSON, and it names the model that will be served.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from caldrix.api import state
from caldrix.api.answers import MAX_BODY_BYTES
from caldrix.api.call import check_model
from caldrix.api.fields import Fields
from caldrix.api.json_body import read_object
from caldrix.api.refusals import ApiError, unavailable
from caldrix.api.reply import error_response
from caldrix.api.routes import TABLE, Body, Route
from caldrix.api.service import State
from caldrix.http.messages import Exchange, Request, Response

# The routes that need no model, by name.
_READY: dict[str, Callable[[], Response]] = {
    "/health": lambda: state.health_response(State.LOADING),
    "/readyz": lambda: state.health_response(State.LOADING),
    "/livez": state.live_response,
    "/version": state.version_response,
    "/": lambda: state.index_response(TABLE.index),
}


class LoadingAnswers:
    """`name` is what the model will be called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def endpoint(self, route: Route, tail: str, request_id: str) -> "Waiting":
        return Waiting(route, self._name)

    def observe(self, exchange: Exchange) -> None:
        """Nothing: there are no records yet."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Answers one admitted request."""

    route: Route
    name: str
    max_body_bytes: int = MAX_BODY_BYTES

    async def __call__(self, request: Request, gone: asyncio.Event) -> Response:
        ready = _READY.get(self.route.name)
        if ready is not None:
            return ready()
        try:
            await self._check(request)
        except ApiError as error:
            return error_response(error)
        message = f"the model `{self.name}` is loading; ask again soon"
        return error_response(unavailable("model_loading", message))

    async def _check(self, request: Request) -> None:
        body = self.route.body
        if body is not Body.UNREAD:
            fields = Fields(await read_object(request, asyncio.to_thread))
            check_model(fields, self.name, is_required=body is Body.NAMES_MODEL)
