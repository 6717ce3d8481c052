"""The histograms of requests in /metrics: their durations by route, their sizes.

Owns which moment of an ended request goes where. Knows neither rendering nor who reads.
"""

from caldrix.api.metrics import TOKENS, Histogram
from caldrix.api.records import Record
from caldrix.api.timings import decode_s, gaps
from caldrix.engine.telemetry import SECONDS


class RequestHistograms:
    def __init__(self) -> None:
        def seconds(name: str, help: str) -> Histogram:
            return Histogram(f"caldrix_{name}_seconds", help, SECONDS, ("route",))

        self.queue = seconds("request_queue", "From asking to a slot")
        self.prefill = seconds("request_prefill", "From the first prompt row to the last")
        self.first = seconds("time_to_first_token", "From asking to the first token")
        self.gap = seconds("inter_token", "Between neighbouring tokens of a reply")
        self.decode = seconds("request_decode", "From the first token to the last")
        self.whole = seconds("request", "From asking to the end of the reply")
        self.prompt = Histogram(
            "caldrix_request_prompt_tokens", "Prompt tokens of a request", TOKENS
        )
        self.generated = Histogram(
            "caldrix_request_generation_tokens", "Tokens picked for a request", TOKENS
        )

    @property
    def all(self) -> tuple[Histogram, ...]:
        timed = (self.queue, self.prefill, self.first, self.gap, self.decode, self.whole)
        return (*timed, self.prompt, self.generated)

    def take(self, record: Record) -> None:
        job, route = record.job, record.route
        assert job is not None
        self.prompt.observe(job.usage.prompt)
        self.generated.observe(job.usage.completion)
        for timings in job.timings:
            for histogram, value in (
                (self.queue, timings.queue_s),
                (self.prefill, timings.prefill_s),
                (self.first, timings.first_token_s),
                (self.decode, decode_s(timings) if timings.token_times else None),
                (self.whole, timings.total_s),
            ):
                if value is not None:
                    histogram.observe(value, route)
        for gap in gaps(job.timings):
            self.gap.observe(gap, route)
