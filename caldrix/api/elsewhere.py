"""Routes of other servers that this one does not answer, each refused with what to use instead.

A client that asks for embeddings or decisions learns that the model cannot, not that the address is
wrong; none of these answers is one that clients repeat.
"""

from caldrix.api.call import Call
from caldrix.api.refusals import ApiError
from caldrix.api.reply import json_response
from caldrix.http.messages import Response


async def no_embeddings(call: Call) -> Response:
    raise _unsupported(call, "has no pooling head and gives no embeddings")


async def no_ranking(call: Call) -> Response:
    raise _unsupported(call, "cannot rank documents; that needs a decision model")


async def no_decisions(call: Call) -> Response:
    raise _unsupported(call, "cannot decide; that needs a decision model")


async def no_systemone(call: Call) -> Response:
    """In the shape that this route's clients read."""
    message = f"the model `{call.service.name}` cannot decide; that needs a decision model"
    detail = {"error_type": "unsupported_model", "message": message}
    return json_response({"detail": detail}, 400)


async def no_responses(call: Call) -> Response:
    message = "the Responses API is not in this version; use POST /v1/chat/completions"
    raise ApiError(404, "unknown_url", message)


async def no_messages(call: Call) -> Response:
    """In the shape that this route's clients read."""
    message = "this route is not in this version; use POST /v1/chat/completions"
    error = {"message": message, "type": "not_found_error"}
    body = {"error": error, "request_id": call.record.request_id, "type": "error"}
    return json_response(body, 404)


def _unsupported(call: Call, reason: str) -> ApiError:
    message = f"the model `{call.service.name}` {reason}"
    return ApiError(400, "unsupported_model", message, "model")
