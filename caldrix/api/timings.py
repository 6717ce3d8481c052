"""Durations of one request, in milliseconds: the record's `host` and the reply's `timings`.

Owns both sets of names and the arithmetic from the engine's moments. A duration whose end has not
come is null.
"""

from collections.abc import Sequence

from caldrix.api.choices import Job
from caldrix.engine.telemetry import Telemetry, Timings


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def decode_s(timings: Timings) -> float:
    """From the first token to the last."""
    times = timings.token_times
    return times[-1] - times[0] if times else 0.0


def gaps(timings: Sequence[Timings]) -> list[float]:
    """Seconds between neighbouring tokens of each choice."""
    found: list[float] = []
    for one in timings:
        times = one.token_times
        found += [times[i + 1] - times[i] for i in range(len(times) - 1)]
    return found


def host_times(
    parse_s: float, tokenize_s: float, job: Job | None, stalled_s: float | None
) -> dict[str, object]:
    """`stalled_s`: how long the answer waited for its reader, once it is over."""
    body: dict[str, object] = {
        "parse_ms": milliseconds(parse_s),
        "tokenize_ms": milliseconds(tokenize_s),
        "image_ms": 0.0,
        "write_stall_ms": milliseconds(stalled_s),
    }
    names = ("queue_ms", "prefill_ms", "ttft_ms", "decode_ms", "total_ms", "inter_token_ms")
    if job is None:
        return {**body, **dict.fromkeys(names)}
    first, last = job.timings[0], job.timings[-1]
    end = last.finished_at
    body["queue_ms"] = milliseconds(first.queue_s)
    body["prefill_ms"] = milliseconds(first.prefill_s)
    body["ttft_ms"] = milliseconds(first.first_token_s)
    body["decode_ms"] = milliseconds(sum(decode_s(one) for one in job.timings))
    body["total_ms"] = milliseconds(None if end is None else end - first.queued_at)
    body["inter_token_ms"] = _spread(sorted(gaps(job.timings)))
    return body


def _spread(values: list[float]) -> dict[str, float | None] | None:
    if not values:
        return None
    n = len(values)
    return {
        "mean": milliseconds(sum(values) / n),
        "p50": milliseconds(values[n // 2]),
        "p95": milliseconds(values[min(n - 1, n * 95 // 100)]),
        "max": milliseconds(values[-1]),
    }


def device_times(job: Job, telemetry: Telemetry) -> dict[str, object] | None:
    """Of the native steps that were timed, others' rows included; None when none was."""
    found = [one.device for one in job.timings if one.device is not None]
    if not found:
        return None
    n_decode = sum(one.n_decode for one in found)
    decode_s = sum(one.decode_s for one in found)
    return {
        "steps_sampled": sum(one.n_steps for one in found),
        "prefill_ms": milliseconds(sum(one.prefill_s for one in found)),
        "decode_step_ms": {
            "mean": milliseconds(decode_s / n_decode) if n_decode else None,
            "max": milliseconds(max(one.decode_max_s for one in found)) if n_decode else None,
        },
        "period": telemetry.sample_period,
        "offset": telemetry.sample_offset,
    }


def reply_timings(job: Job) -> dict[str, object]:
    """The object that `timings: true` adds to a reply, in the names of other servers."""
    usage = job.usage
    prompt_n = usage.prompt - usage.cached
    prompt_ms = milliseconds(sum(one.prefill_s or 0.0 for one in job.timings)) or 0.0
    predicted_ms = milliseconds(sum(decode_s(one) for one in job.timings)) or 0.0
    return {
        "cache_n": usage.cached,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        **_rates("prompt", prompt_n, prompt_ms),
        "predicted_n": usage.completion,
        "predicted_ms": predicted_ms,
        **_rates("predicted", usage.completion, predicted_ms),
        "queue_ms": milliseconds(job.timings[0].queue_s) or 0.0,
    }


def _rates(name: str, n: int, ms: float) -> dict[str, float]:
    return {
        f"{name}_per_token_ms": round(ms / n, 3) if n else 0.0,
        f"{name}_per_second": round(1000 * n / ms, 3) if ms else 0.0,
    }
