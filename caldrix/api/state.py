"""The state of the service for people, probes and dashboards: health, version, props, slots, index.

None of these waits for the engine or takes a place in its queue.
"""

from collections.abc import Mapping

from caldrix import __version__
from caldrix.api.call import Call
from caldrix.api.reply import json_response
from caldrix.api.service import Service, State
from caldrix.http.messages import Response

_WORDS = {
    State.LOADING: ("model_loading", "the model is loading"),
    State.DRAINING: ("shutting_down", "the server is shutting down"),
    State.FAILED: ("engine_error", "the engine has failed"),
}


async def health(call: Call) -> Response:
    return health_response(call.service.state)


def health_response(state: State) -> Response:
    """Fine, or the error that a request would get, with the state beside it."""
    if state is State.OK:
        return json_response({"status": "ok"})
    code, message = _WORDS[state]
    error = {"code": code, "message": message, "param": None, "type": "unavailable_error"}
    return json_response({"error": error, "status": state.value}, 503, (("retry-after", "1"),))


async def live(call: Call) -> Response:
    return live_response()


def live_response() -> Response:
    return json_response({"status": "ok"})


async def version(call: Call) -> Response:
    return version_response()


def version_response() -> Response:
    return json_response({"version": __version__})


async def props(call: Call) -> Response:
    service = call.service
    template = service.model.chat_template
    return json_response(
        {
            "build_info": f"caldrix {__version__}",
            "chat_template": "" if template is None else template.source,
            "default_generation_settings": {
                "n_ctx": service.model.context,
                "params": sampling_body(service),
            },
            "is_sleeping": False,
            "modalities": {"vision": False},
            "model_alias": service.name,
            "total_slots": service.model.program.n_slots,
        }
    )


def sampling_body(service: Service) -> dict[str, object]:
    defaults = service.settings.sampling
    return {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repetition_penalty": defaults.repetition_penalty,
        "seed": defaults.seed,
    }


async def index(call: Call) -> Response:
    return index_response(call.index)


def index_response(routes: Mapping[str, list[str]]) -> Response:
    """What there is to ask for, by path."""
    return json_response({"name": "caldrix", "routes": routes, "version": __version__})
