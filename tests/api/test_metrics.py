"""/metrics as a scraper reads it: the text format, the rules of each type, the names of others."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import Served, serving

from caldrix.api.service import Settings
from caldrix.engine.telemetry import Level, Telemetry

HOSTILE = 'a"b\\c\n# TYPE x counter\n{},é=\r日 \\n'
FORMS = ["", "vllm", "llamacpp"]
LLAMA = {
    "llamacpp:prompt_tokens_total": "caldrix_prompt_tokens_total",
    "llamacpp:tokens_predicted_total": "caldrix_generation_tokens_total",
    "llamacpp:prompt_seconds_total": "caldrix_request_prefill_seconds_sum",
    "llamacpp:tokens_predicted_seconds_total": "caldrix_request_decode_seconds_sum",
    "llamacpp:requests_processing": "caldrix_requests_running",
    "llamacpp:requests_deferred": "caldrix_requests_waiting",
    "llamacpp:n_decode_total": "caldrix_engine_steps_total",
}
VLLM = {
    "vllm:num_requests_running": "caldrix_requests_running",
    "vllm:num_requests_waiting": "caldrix_requests_waiting",
    "vllm:prompt_tokens_total": "caldrix_prompt_tokens_total",
    "vllm:generation_tokens_total": "caldrix_generation_tokens_total",
    "vllm:request_success_total": "caldrix_request_finish_total",
}
VLLM_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "caldrix_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "caldrix_inter_token_seconds",
    "vllm:e2e_request_latency_seconds": "caldrix_request_seconds",
    "vllm:request_queue_time_seconds": "caldrix_request_queue_seconds",
    "vllm:request_prefill_time_seconds": "caldrix_request_prefill_seconds",
    "vllm:request_decode_time_seconds": "caldrix_request_decode_seconds",
}


class Scrape:
    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """Of all samples of a name with these labels; there must be one."""
        found = [
            s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()
        ]
        assert found, name
        return sum(found)


def scrape(served: Served, form: str = "") -> Scrape:
    answer = served.get(f"/metrics?compat={form}")
    assert answer.status == 200
    return Scrape(answer.body.decode())


@pytest.fixture(scope="module")
def busy(quick_path: Path) -> Iterator[Served]:
    """A server with a hostile name that has answered on two routes."""
    with serving(quick_path, name=HOSTILE) as served:
        served.chat(max_tokens=3)
        served.chat(max_tokens=40)
        served.complete("The q", max_tokens=2, n=2)
        served.chat(temperature=-1)
        yield served


@pytest.mark.parametrize("form", FORMS)
def test_every_family_is_told_once_and_keeps_its_rules(busy: Served, form: str) -> None:
    found = scrape(busy, form)
    lines = found.text.splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert names == [line.split()[2] for line in lines if line.startswith("# HELP ")]
    assert len(set(names)) == len(names)
    keys = [(s.name, tuple(sorted(s.labels.items()))) for s in found.samples]
    assert len(set(keys)) == len(keys)
    assert all(family.type != "unknown" and family.documentation for family in found.families)
    for family in found.families:
        suffixes = {s.name.removeprefix(family.name) for s in family.samples}
        if family.type == "counter":
            assert suffixes == {"_total"}, family.name
            assert all(s.value >= 0 for s in family.samples)
        elif family.type == "histogram":
            assert suffixes == {"_bucket", "_sum", "_count"}, family.name
            check_histogram(family)
        else:
            assert suffixes == {""}
            assert not family.name.endswith(("_total", "_sum", "_count", "_bucket"))
    assert ("vllm:" in found.text, "llamacpp:" in found.text) == (
        form == "vllm",
        form == "llamacpp",
    )


def check_histogram(family: Any) -> None:
    buckets: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            labels = {k: v for k, v in sample.labels.items() if k != "le"}
            bound = float(sample.labels["le"])
            buckets[tuple(sorted(labels.items()))].append((bound, sample.value))
    counts = {
        tuple(sorted(s.labels.items())): s.value
        for s in family.samples
        if s.name.endswith("_count")
    }
    assert buckets.keys() == counts.keys()
    for key, found in buckets.items():
        assert found == sorted(found)  # bounds rise, and so do their counts
        assert [count for _, count in found] == sorted(count for _, count in found)
        assert found[-1] == (float("inf"), counts[key])


def test_a_name_of_any_kind_is_a_label_and_nothing_else(busy: Served) -> None:
    for form, label in (("", "model"), ("vllm", "model_name")):
        found = scrape(busy, form)
        named = {s.labels[label] for s in found.samples if label in s.labels}
        assert named == {HOSTILE}


def test_vllm_dashboards_find_their_names(busy: Served) -> None:
    found = scrape(busy, "vllm")
    ours = [s for s in found.samples if s.name.startswith("vllm:")]
    bare = {s.name for s in ours if "le" not in s.labels}
    parts = {f"{name}_{part}" for name in VLLM_HISTOGRAMS for part in ("sum", "count")}
    assert bare == {*VLLM, *parts, "vllm:kv_cache_usage_perc"}
    for theirs, name in VLLM.items():
        assert found.total(theirs) == found.total(name)
    used, capacity = (found.total(f"caldrix_kv_tokens_{which}") for which in ("used", "capacity"))
    assert found.total("vllm:kv_cache_usage_perc") == used / capacity > 0
    for reason in ("stop", "length"):
        finished = found.total("vllm:request_success_total", finished_reason=reason)
        assert finished == found.total("caldrix_request_finish_total", reason=reason) > 0
    for theirs, name in VLLM_HISTOGRAMS.items():
        assert found.total(f"{theirs}_sum") == pytest.approx(found.total(f"{name}_sum"))
        assert found.total(f"{theirs}_count") == found.total(f"{name}_count") > 0
        for bound in ("0.001", "1", "300", "+Inf"):
            buckets = (found.total(f"{one}_bucket", le=bound) for one in (theirs, name))
            assert len(set(buckets)) == 1
    assert found.total("vllm:e2e_request_latency_seconds_count") == 4


def test_llamacpp_dashboards_find_their_names(busy: Served) -> None:
    found = scrape(busy, "llamacpp")
    ours = [s for s in found.samples if s.name.startswith("llamacpp:")]
    assert {s.name for s in ours} == {*LLAMA, "llamacpp:n_tokens_max"}
    assert all(not s.labels for s in ours)
    for theirs, name in LLAMA.items():
        assert found.total(theirs) == pytest.approx(found.total(name))
    usage = busy.chat(max_tokens=40).json["usage"]
    assert scrape(busy, "llamacpp").total("llamacpp:n_tokens_max") == usage["total_tokens"]


def test_a_reply_that_was_called_off_has_their_word(endless_path: Path) -> None:
    with serving(endless_path) as served:
        stream = served.opened_stream(max_tokens=400)
        stream.close()
        while "caldrix_request_finish_total" not in served.get("/metrics").body.decode():
            pass
        found = scrape(served, "vllm")
        assert found.total("vllm:request_success_total", finished_reason="abort") == 1


def test_without_telemetry_their_durations_are_absent(quick_path: Path) -> None:
    with serving(quick_path, Settings(telemetry=Telemetry(Level.OFF))) as served:
        served.chat(max_tokens=2)
        for form in FORMS:
            found = scrape(served, form)
            assert not any(family.type == "histogram" for family in found.families)
        assert found.total("llamacpp:tokens_predicted_total") == 2
        assert "seconds_total" not in found.text.replace("process_cpu_seconds_total", "")


@pytest.mark.parametrize("form", ["prometheus", "VLLM", "vllm,llamacpp", "%00"])
def test_a_form_that_nobody_knows_is_refused(quick: Served, form: str) -> None:
    answer = quick.get(f"/metrics?compat={form}")
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("invalid_value", "compat")
    assert "llamacpp, vllm" in answer.error["message"]
