"""The numbers of /metrics once more, under the names that dashboards of other servers look for.

Owns those names and their labels. The values are the ones that the families of this server show at
the same moment; where another server counts by model alone, routes are added up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from caldrix.api.metrics import Counter, Histogram, Labels, family, gauge, sample
from caldrix.api.request_histograms import RequestHistograms
from caldrix.engine.snapshot import Snapshot
from caldrix.engine.telemetry import StepTally

# Reasons that have another name there.
_VLLM_REASONS = {"cancelled": "abort"}


@dataclass(frozen=True, slots=True)
class Values:
    """What there is to show. `histograms` is None where durations are not recorded."""

    model: str
    snapshot: Snapshot
    tally: StepTally
    prompt: Counter
    generated: Counter
    finishes: Counter
    histograms: RequestHistograms | None
    most_tokens: int


def vllm(values: Values) -> list[str]:
    snapshot = values.snapshot
    labels: Labels = (("model_name", values.model),)
    share = snapshot.kv_tokens_used / snapshot.kv_tokens_capacity
    lines = [
        *gauge("vllm:num_requests_running", "Slots in use", snapshot.n_running, labels),
        *gauge("vllm:num_requests_waiting", "Requests in the queue", snapshot.n_waiting, labels),
        *gauge("vllm:kv_cache_usage_perc", "Share of the slots' memory", share, labels),
        *_counter("vllm:prompt_tokens_total", values.prompt, labels),
        *_counter("vllm:generation_tokens_total", values.generated, labels),
        *_successes(values.finishes, labels),
    ]
    if (histograms := values.histograms) is not None:
        for name, histogram in (
            ("vllm:time_to_first_token_seconds", histograms.first),
            ("vllm:inter_token_latency_seconds", histograms.gap),
            ("vllm:e2e_request_latency_seconds", histograms.whole),
            ("vllm:request_queue_time_seconds", histograms.queue),
            ("vllm:request_prefill_time_seconds", histograms.prefill),
            ("vllm:request_decode_time_seconds", histograms.decode),
        ):
            lines += _histogram(name, histogram, labels)
    return lines


def llamacpp(values: Values) -> list[str]:
    snapshot, tally = values.snapshot, values.tally
    most = "Most tokens of one prompt and its reply"
    n_steps = tally.n_prefill + tally.n_decode
    lines = [
        *_counter("llamacpp:prompt_tokens_total", values.prompt),
        *_counter("llamacpp:tokens_predicted_total", values.generated),
        *gauge("llamacpp:requests_processing", "Slots in use", snapshot.n_running),
        *gauge("llamacpp:requests_deferred", "Requests in the queue", snapshot.n_waiting),
        *gauge("llamacpp:n_tokens_max", most, values.most_tokens),
        *_number("llamacpp:n_decode_total", "Native steps", n_steps),
    ]
    if (histograms := values.histograms) is not None:
        for name, help, histogram in (
            ("llamacpp:prompt_seconds_total", "Seconds of prefill", histograms.prefill),
            ("llamacpp:tokens_predicted_seconds_total", "Seconds of decode", histograms.decode),
        ):
            lines += _number(name, help, histogram.sum)
    return lines


FORMS: Mapping[str, Callable[[Values], list[str]]] = {"llamacpp": llamacpp, "vllm": vllm}


def _counter(name: str, counter: Counter, labels: Labels = ()) -> list[str]:
    """A counter without labels of its own."""
    return _number(name, counter.help, counter.value, labels)


def _number(name: str, help: str, value: float, labels: Labels = ()) -> list[str]:
    return family(name, "counter", help, [sample(name, labels, value)])


def _successes(finishes: Counter, labels: Labels) -> list[str]:
    name = "vllm:request_success_total"
    samples = [
        sample(name, (*labels, ("finished_reason", _VLLM_REASONS.get(reason, reason))), value)
        for (reason,), value in finishes.values.items()
    ]
    return family(name, "counter", finishes.help, samples)


def _histogram(name: str, histogram: Histogram, labels: Labels) -> list[str]:
    return family(name, "histogram", histogram.help, histogram.total_lines(name, labels))
