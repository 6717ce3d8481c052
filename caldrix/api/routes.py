"""The table: method, path, handler. An endpoint is one row here and one file beside it.

Owns which paths there are, their aliases, and which methods each takes. Knows no handler's work.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto

from caldrix.api import chat, completions, debug, elsewhere, model_list, state, tokens
from caldrix.api.call import Call
from caldrix.http.messages import Response, StreamResponse

Handler = Callable[[Call], Awaitable[Response | StreamResponse]]


class Body(Enum):
    """What can be said of a route's body before there is a model."""

    UNREAD = auto()  # or none
    MAY_NAME_MODEL = auto()  # an object; `model`, where given, is the served one
    NAMES_MODEL = auto()


_TOOL, _ASKS = Body.MAY_NAME_MODEL, Body.NAMES_MODEL


@dataclass(frozen=True, slots=True)
class Route:
    """`path` ends with `/*` where the rest of the path is the handler's."""

    method: str
    path: str
    handler: Handler
    aliases: tuple[str, ...] = ()
    body: Body = Body.UNREAD
    is_open: bool = False  # answered without a key
    is_recorded: bool = False  # a generation request, which leaves a record

    @property
    def name(self) -> str:
        """The route in metrics and records."""
        return self.path


ROUTES = (
    Route("GET", "/v1/models", model_list.list_models, ("/models",)),
    Route("GET", "/v1/models/*", model_list.one_model, ("/models/*",)),
    Route("POST", "/v1/chat/completions", chat.chat, ("/chat/completions",), _ASKS,
          is_recorded=True),
    Route("POST", "/v1/completions", completions.completions, ("/completions",), _ASKS,
          is_recorded=True),
    Route("GET", "/health", state.health, ("/v1/health",), is_open=True),
    Route("GET", "/readyz", state.health, is_open=True),
    Route("GET", "/livez", state.live, is_open=True),
    Route("GET", "/version", state.version),
    Route("GET", "/props", state.props),
    Route("GET", "/slots", debug.slots),
    Route("GET", "/metrics", debug.metrics),
    Route("GET", "/debug/requests", debug.requests),
    Route("GET", "/debug/requests/*", debug.one_request),
    Route("POST", "/tokenize", tokens.tokenize, ("/v1/tokenize",), _TOOL),
    Route("POST", "/detokenize", tokens.detokenize, ("/v1/detokenize",), _TOOL),
    Route("POST", "/apply-template", tokens.apply_template, ("/v1/apply-template",), _TOOL),
    Route("POST", "/v1/chat/completions/input_tokens", tokens.input_tokens, body=_TOOL),
    Route("POST", "/v1/chat/completions/*", chat.cancel, ("/chat/completions/*",)),
    Route("GET", "/", state.index),
    # what this version does not do
    Route("POST", "/v1/embeddings", elsewhere.no_embeddings, ("/embeddings",)),
    Route("POST", "/v1/rerank", elsewhere.no_ranking, ("/rerank", "/v1/reranking", "/reranking")),
    Route("POST", "/v1/decisions", elsewhere.no_decisions),
    Route("POST", "/v1/systemone", elsewhere.no_systemone),
    Route("POST", "/v1/responses", elsewhere.no_responses, ("/responses",)),
    Route("POST", "/v1/messages", elsewhere.no_messages),
)  # fmt: skip


class Table:
    """Finds the route of a path."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._under: list[tuple[str, Route]] = []
        for route in routes:
            for path in (route.path, *route.aliases):
                if path.endswith("/*"):
                    self._under.append((path[:-1], route))
                else:
                    self._exact.setdefault(path, {})[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], str]:
        """The routes of a path by method, and what the path has beyond theirs."""
        if (routes := self._exact.get(path)) is not None:
            return routes, ""
        found: dict[str, Route] = {}
        tail = ""
        for prefix, route in self._under:
            if path.startswith(prefix) and len(path) > len(prefix):
                found[route.method] = route
                tail = path[len(prefix) :]
        return found, tail

    @property
    def index(self) -> dict[str, list[str]]:
        """The methods of every path."""
        found = {path: sorted(routes) for path, routes in self._exact.items()}
        for prefix, route in self._under:
            found.setdefault(f"{prefix}*", []).append(route.method)
        return found


TABLE = Table(ROUTES)
