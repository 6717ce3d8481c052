"""GET /v1/models: the one model that is served.

Owns the two shapes of an entry: the captured list, byte for byte, and the detailed form where a
client asks for it.
"""

from urllib.parse import parse_qs, unquote

from caldrix.api.call import Call
from caldrix.api.refusals import model_not_found
from caldrix.api.reply import json_response
from caldrix.api.service import Service
from caldrix.http.messages import Response


async def list_models(call: Call) -> Response:
    service = call.service
    detailed = parse_qs(call.request.head.query).get("details") == ["1"]
    entry = details(service) if detailed else _entry(service)
    body: dict[str, object] = {"data": [entry], "object": "list"}
    if call.request.head.headers.get("x-typesafe-sdk") is not None:
        body["models"] = _typesafe(service)
    return json_response(body)


async def one_model(call: Call) -> Response:
    name = unquote(call.tail)
    if name != call.service.name:
        raise model_not_found(name, call.service.name)
    return json_response(details(call.service))


def _entry(service: Service) -> dict[str, object]:
    return {"id": service.name, "object": "model", "owned_by": "inferno"}


def details(service: Service) -> dict[str, object]:
    model = service.model
    return {
        **_entry(service),
        "created": service.created,
        "max_model_len": model.context,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "meta": {
            "backend": "cpu",
            "chat_template": model.chat_template is not None,
            "dtype": model.program.options.dtype,
            "n_params": model.n_params,
            "n_vocab": model.program.vocab_size,
            "revision": model.revision,
        },
    }


def _typesafe(service: Service) -> list[dict[str, object]]:
    """What that client's list needs to be read at all."""
    return [
        {"name": name, "description": "", "release_date": "1970-01-01"}
        for name in (service.name, "jev-latest")
    ]
