"""The fields that chat and completions share: how to sample, how long, when to stop, how to answer.

Owns their ranges, defaults and refusals, each in one function, called in the order in which docs/
lists the fields. Knows neither messages nor prompts. A field that would change the reply and is not
supported is refused by name.
"""

from collections.abc import Callable
from dataclasses import dataclass

from caldrix.api.fields import Fields, as_integer, as_number, too_long, too_many
from caldrix.api.refusals import (
    missing,
    unsupported,
    unsupported_value,
    wrong_type,
    wrong_value,
)
from caldrix.engine.sequence import SamplingParams

MAX_STOPS, MAX_STOP_BYTES = 16, 512
MAX_CHOICES = 16
MAX_BIASES = 1024
MAX_STOP_IDS = 16
MAX_TOP_LOGPROBS = 20
UNLIMITED = 2**31 - 1  # a count above this says no more than this does

# Known to clients, without effect on a reply here.
NO_EFFECT = (
    "user", "safety_identifier", "metadata", "store", "service_tier", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "prediction", "verbosity", "priority",
    "request_id",
)  # fmt: skip

# Would change the reply: refused when set, with what to use instead.
REFUSED = {
    "audio": "this server answers with text only",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "web_search_options": "this server fetches nothing",
    "moderation": "this server moderates nothing",
    "chat_template": "the model's own template is used; pass chat_template_kwargs",
    "grammar": "use response_format",
    "structured_outputs": "use response_format",
    "guided_json": "use response_format",
    "guided_regex": "use response_format",
    "guided_choice": "use response_format",
    "guided_grammar": "use response_format",
    "guided_decoding_backend": "use response_format",
    "guided_whitespace_pattern": "use response_format",
    "lora": "serve the merged model",
}


@dataclass(frozen=True, slots=True)
class Streaming:
    is_on: bool
    include_usage: bool = False
    continuous_usage: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What the fields of one request ask of every choice."""

    sampling: SamplingParams
    max_tokens: int | None
    streaming: Streaming
    stops: tuple[str, ...]
    n: int
    n_logprobs: int | None  # alternatives that each token's score comes with; None: no scores
    logit_bias: tuple[tuple[int, float], ...]
    presence_penalty: float
    frequency_penalty: float
    stop_token_ids: frozenset[int]
    min_tokens: int
    ignore_eos: bool
    timings: bool
    use_cache: bool


def sampling(f: Fields, defaults: SamplingParams) -> SamplingParams:
    """The six settings; a field that is absent keeps the server's default."""
    temperature = f.number(
        "temperature", lambda t: t >= 0, "a finite number >= 0", defaults.temperature
    )
    top_p = f.number("top_p", lambda p: 0 < p <= 1, "a number > 0 and <= 1", defaults.top_p)
    top_k = f.integer("top_k", 0, None, "an integer >= 0")
    min_p = f.number("min_p", lambda m: 0 <= m <= 1, "a number from 0 to 1", defaults.min_p)
    penalty = defaults.repetition_penalty
    for name in ("repeat_penalty", "repetition_penalty"):  # the second has the last word
        penalty = f.number(name, lambda r: r > 0, "a finite number > 0", penalty)
    seed = f.integer("seed", -(2**63), 2**63 - 1, "an integer from -2^63 to 2^63-1")
    return SamplingParams(
        temperature=temperature,
        top_k=defaults.top_k if top_k is None else min(top_k, UNLIMITED),
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalty,
        seed=defaults.seed if seed is None else seed,
    )


def chat_max_tokens(f: Fields, default: int | None) -> int | None:
    """The first of two names that is given; -1 asks for no limit."""
    limits: list[int | None] = []
    for name in ("max_completion_tokens", "max_tokens"):
        wanted = "an integer >= 1, or -1 for no limit"
        value = f.integer(name, -1, None, wanted)
        if value is None:
            continue
        if value == 0:
            raise wrong_value(f.param(name), wanted, value)
        limits.append(None if value == -1 else min(value, UNLIMITED))
    return limits[0] if limits else default


def completion_max_tokens(f: Fields, default: int) -> int:
    value = f.integer("max_tokens", 0, None, "an integer >= 0")
    return default if value is None else min(value, UNLIMITED)


def streaming(f: Fields) -> Streaming:
    is_on = f.boolean("stream")
    options = f.object("stream_options")
    if options is None:
        return Streaming(is_on)
    if not is_on:
        raise wrong_value("stream_options", "absent without stream: true", options.values)
    usage = options.boolean("include_usage")
    options.boolean("include_obfuscation")
    return Streaming(is_on, usage, options.boolean("continuous_usage_stats"))


def stops(f: Fields) -> tuple[str, ...]:
    value = f.get("stop")
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    if len(items) > MAX_STOPS:
        raise too_many("stop", MAX_STOPS, len(items))
    found: list[str] = []
    for item in items:
        if not isinstance(item, str):
            raise wrong_type("stop", "a string or an array of strings", item)
        if not item:
            raise wrong_value("stop", "made of strings that are not empty", item)
        if len(item.encode()) > MAX_STOP_BYTES:
            raise too_long("stop", MAX_STOP_BYTES, len(item.encode()))
        found.append(item)
    return tuple(found)


def n_choices(f: Fields) -> int:
    return f.integer("n", 1, MAX_CHOICES, f"an integer from 1 to {MAX_CHOICES}") or 1


def chat_logprobs(f: Fields) -> int | None:
    is_on = f.boolean("logprobs")
    n_top = f.integer(
        "top_logprobs", 0, MAX_TOP_LOGPROBS, f"an integer from 0 to {MAX_TOP_LOGPROBS}"
    )
    if n_top is not None and not is_on:
        raise wrong_value("top_logprobs", "absent without logprobs: true", n_top)
    return (n_top or 0) if is_on else None


def logit_bias(f: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    value = f.get("logit_bias")
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "an object of token ids and numbers", value)
    if len(value) > MAX_BIASES:
        raise too_many("logit_bias", MAX_BIASES, len(value))
    biases = []
    for key, bias in value.items():
        is_id = key.isascii() and key.isdecimal() and len(key) <= 10
        if not is_id or int(key) >= vocab_size:
            raise wrong_value("logit_bias", f"keyed by token ids from 0 to {vocab_size - 1}", key)
        number = as_number(bias)
        if number is None:
            raise wrong_type("logit_bias", "made of numbers from -100 to 100", bias)
        if not -100 <= number <= 100:
            raise wrong_value("logit_bias", "made of numbers from -100 to 100", bias)
        biases.append((int(key), number))
    return tuple(biases)


def penalty(f: Fields, name: str) -> float:
    return f.number(name, lambda p: -2 <= p <= 2, "a number from -2 to 2", 0.0)


def response_format(f: Fields) -> None:
    """Text; the constrained formats are known and not supported."""
    value = f.object("response_format")
    if value is None:
        return
    kind = value.required_string("type")
    if kind in ("json_object", "json_schema"):
        reason = f"{kind} needs constrained decoding, which this version has not; use text"
        raise unsupported_value("response_format.type", reason)
    if kind != "text":
        raise wrong_value("response_format.type", "text", kind)


def stop_token_ids(f: Fields, vocab_size: int) -> frozenset[int]:
    ids = f.array("stop_token_ids", MAX_STOP_IDS) or []
    return frozenset(token_id(value, "stop_token_ids", vocab_size) for value in ids)


def token_id(value: object, param: str, vocab_size: int) -> int:
    number = as_integer(value)
    if number is None:
        raise wrong_type(param, "made of token ids", value)
    if not 0 <= number < vocab_size:
        raise wrong_value(param, f"made of token ids from 0 to {vocab_size - 1}", value)
    return number


def min_tokens(f: Fields) -> int:
    return min(f.integer("min_tokens", 0, None, "an integer >= 0") or 0, UNLIMITED)


def timings(f: Fields) -> bool:
    per_token = f.boolean("timings_per_token")
    return f.boolean("timings", per_token)


def refuse_others(f: Fields) -> None:
    """What remains of the known fields: those without effect and those refused when set."""
    f.know(NO_EFFECT)
    for name, reason in REFUSED.items():
        if f.get(name) is not None:
            raise unsupported(name, reason)
    for name in f.values:
        if name.startswith("guided_") and f.get(name) is not None:
            raise unsupported(name, "use response_format")
    _modalities(f)
    if f.boolean("use_beam_search"):
        raise unsupported("use_beam_search", "use n with a seed")


def _modalities(f: Fields) -> None:
    for value in f.array("modalities", 8) or []:
        if value != "text":
            raise unsupported("modalities", "this server answers with text only")


def model_name(f: Fields, served: str, model_not_found: Callable[[str, str], Exception]) -> None:
    """Refuses a request that is meant for another model."""
    name = f.get("model")
    if name is None:
        raise missing("model")
    if not isinstance(name, str):
        raise wrong_type("model", "a string", name)
    if name != served:
        raise model_not_found(name, served)
