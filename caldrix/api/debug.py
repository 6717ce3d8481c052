"""GET /debug/requests, /slots and /metrics: what runs now and what ran last.

Never a word of a prompt or a reply; nothing here waits for the engine.
"""

from urllib.parse import parse_qs, unquote

from caldrix.api.call import Call
from caldrix.api.dashboards import FORMS
from caldrix.api.records import RING
from caldrix.api.refusals import ApiError, shown, wrong_value
from caldrix.api.reply import json_response
from caldrix.engine.snapshot import SlotState
from caldrix.http.messages import Response

DEFAULT_LIMIT = 50
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = {
    "queued": ("queued",),
    "running": ("prefill", "decode"),
    "done": ("done",),
}


async def requests(call: Call) -> Response:
    query = parse_qs(call.request.head.query)
    limit = _limit(query.get("limit", [str(DEFAULT_LIMIT)])[-1])
    found = call.records.bodies()
    if state := query.get("state", [""])[-1]:
        states = _states(state)
        found = [body for body in found if body["state"] in states]
    if route := query.get("route", [""])[-1]:
        found = [body for body in found if body["route"] == route]
    return json_response(
        {"requests": found[:limit], "ring": RING, "telemetry": call.records.telemetry.level.value}
    )


def _limit(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= 9
    if not is_number or not 1 <= int(text) <= RING:
        raise wrong_value("limit", f"an integer from 1 to {RING}", text)
    return int(text)


def _states(text: str) -> tuple[str, ...]:
    if text not in _STATES:
        raise wrong_value("state", f"one of {', '.join(_STATES)}", text)
    return _STATES[text]


async def one_request(call: Call) -> Response:
    wanted = unquote(call.tail)  # a client may escape the colon of its own id
    for body in call.records.bodies():
        if wanted in (body["id"], body["request_id"]):
            return json_response(body)
    raise ApiError(404, "unknown_url", f"no record of request {shown(wanted)[1:-1]}")


async def metrics(call: Call) -> Response:
    form = parse_qs(call.request.head.query).get("compat", [""])[-1]
    if form and form not in FORMS:
        raise wrong_value("compat", f"one of {', '.join(FORMS)}", form)
    text = call.metrics(form)
    return Response(200, [("Content-Type", METRICS_TYPE)], text.encode())


async def slots(call: Call) -> Response:
    snapshot = call.service.engine.snapshot()
    found = [_slot(slot, snapshot.context) for slot in snapshot.slots]
    fails = parse_qs(call.request.head.query).get("fail_on_no_slot") == ["1"]
    if fails and all(slot.status is not None for slot in snapshot.slots):
        headers = (("retry-after", str(call.service.engine.retry_after_s())),)
        raise ApiError(503, "queue_full", "no slot is free", None, "unavailable_error", headers)
    return json_response(found)


def _slot(slot: SlotState, context: int) -> dict[str, object]:
    return {
        "id": slot.index,
        "is_processing": slot.status is not None,
        "n_ctx": context,
        "n_decoded": slot.n_completion,
        "n_prompt": slot.n_prompt,
        "request_id": slot.label or None,
        "state": "idle" if slot.status is None else slot.status.value,
    }
