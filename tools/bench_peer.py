"""llama.cpp behind the steps of caldrix/engine/measure.py, for tools/bench.

    PYTHONPATH=CHECKOUT PYTHON tools/bench_peer.py MODEL THREADS WORK N_SLOTS

WORK is JSON, the fields of measure.Work. Prints one JSON object: a round as `caldrix bench` has it,
without limits. Needs llama-cpp-python and no built caldrix. Every setting but the threads, the
context and the number of sequences is llama.cpp's default. `start MODEL THREADS PROMPT` instead
answers a chat through the high-level API, for the time that a whole program takes.
"""

import json
import resource
import sys
import time
from collections.abc import Sequence

import llama_cpp
import numpy as np

from caldrix.engine.measure import Work, measure_speeds


class LlamaSteps:
    """Greedy steps by llama_decode. `max_rows` is llama.cpp's own micro-batch."""

    def __init__(self, path: str, threads: int, n_slots: int, context: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_slots * -(-context // 256) * 256
        params.n_seq_max = n_slots
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._model or not self._context:
            sys.exit(f"llama.cpp cannot load {path}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.max_rows = params.n_ubatch
        self.n_slots = n_slots
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = batch = llama_cpp.llama_batch_init(self.max_rows, 0, 1)
        # Views, so that a long prompt costs no more Python than it does in caldrix.
        lists = (batch.token, batch.pos, batch.n_seq_id, batch.logits)
        views = [np.ctypeslib.as_array(values, (self.max_rows,)) for values in lists]
        self._tokens, self._positions, n_seq_id, self._wanted = views
        n_seq_id[:] = 1
        self._slots = [-1] * self.max_rows  # as the batch has them
        self._ends = [0] * n_slots  # of what each slot holds

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        out_rows: Sequence[int],
    ) -> list[int]:
        batch, n = self._batch, len(tokens)
        batch.n_tokens = n
        self._tokens[:n] = tokens
        self._positions[:n] = positions
        self._wanted[:n] = 0
        self._wanted[list(out_rows)] = 1
        for i, (position, slot) in enumerate(zip(positions, slots, strict=True)):
            if position < self._ends[slot]:
                llama_cpp.llama_memory_seq_rm(self._memory, slot, position, -1)
            self._ends[slot] = position + 1
            if self._slots[i] != slot:
                self._slots[i] = batch.seq_id[i][0] = slot
        if llama_cpp.llama_decode(self._context, batch) != 0:
            sys.exit("llama_decode failed")
        return [self._most_likely(row) for row in out_rows]

    def _most_likely(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())


def quiet() -> None:
    """llama.cpp says what it loads on stderr, which tools/bench shows where a run fails."""

    @llama_cpp.llama_log_callback
    def drop(level: int, text: bytes, data: object) -> None:
        if level == 4:  # an error
            sys.stderr.write(text.decode("utf8", "replace"))

    llama_cpp.llama_log_set(drop, None)
    quiet.kept = drop


def measure(path: str, threads: int, work: Work, n_slots: int) -> dict[str, object]:
    began = time.perf_counter()
    model = LlamaSteps(path, threads, n_slots, work.context)
    load_s = time.perf_counter() - began
    speeds = measure_speeds(model, work)
    return {
        "prefill": {str(length): speed for length, speed in speeds.prefill.items()},
        "decode": {str(depth): speed for depth, speed in sorted(speeds.decode.items())},
        "together": speeds.together,
        "checksum": f"{speeds.checksum:016x}",
        "load_s": load_s,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "version": f"llama-cpp-python {llama_cpp.__version__}",
    }


def start(path: str, threads: int, prompt: str) -> None:
    model = llama_cpp.Llama(path, n_ctx=2048, n_threads=threads, verbose=False)
    turn = [{"role": "user", "content": prompt}]
    for piece in model.create_chat_completion(turn, max_tokens=8, temperature=0, stream=True):
        text = piece["choices"][0]["delta"].get("content")
        if text:
            print(text, end="", flush=True)


def main(arguments: list[str]) -> None:
    if arguments[0] == "start":
        start(arguments[1], int(arguments[2]), arguments[3])
        return
    path, threads, work, n_slots = arguments
    quiet()
    fields = {key: tuple(v) if isinstance(v, list) else v for key, v in json.loads(work).items()}
    print(json.dumps(measure(path, int(threads), Work(**fields), int(n_slots))))


if __name__ == "__main__":
    main(sys.argv[1:])
