"""A one-layer model as a hand-made plan: every op once, seeded weights, one file at an odd offset.

With `int8` a second block follows the first, whose linear ops take int8 activations.

For tests of the checker and the executor; no numerics are meant by it. `records` stay editable
until `image` joins them.
"""

from typing import Any

import numpy as np

from caldrix import native

E = native.ENUMS
VOCAB, DIM, HEADS, KV_HEADS, HEAD_DIM, FFN = 96, 64, 4, 2, 16, 96
MAX_ROWS, MAX_OUT, CONTEXT, SLOTS = 24, 8, 80, 3
F32, BF16, Q8_0 = 0, 30, 8


class TinyPlan:
    def __init__(self, seed: int = 1, cache_type: int = F32, int8: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.weights = bytearray()
        self.file = bytearray(b"...")  # so that its matrix starts at an odd byte
        self.activations = 0
        self.cache = 0
        self.cache_type = cache_type
        self.int8 = int8
        self.records: list[tuple[str, dict[str, Any]]] = []
        self._emit()

    # --- places

    def act(self, width: int, n_rows: int = MAX_ROWS) -> tuple[dict[str, int], int]:
        """A new activation: its reference and its stride in floats."""
        stride, offset = -(-width // 16) * 16, self.activations
        self.activations += stride * 4 * n_rows
        return {"arena": E["CX_ARENA_ACTIVATIONS"], "type": F32, "offset": offset}, stride

    def vector(self, n: int, low: float = 0.5, high: float = 1.5) -> dict[str, int]:
        return self._weight(self.random.uniform(low, high, n).astype(np.float32).tobytes(), F32)

    def matrix(self, n: int, k: int) -> dict[str, int]:
        values = self.random.normal(0, k**-0.5, (n, k)).astype(np.float32)
        return self._weight(values.tobytes(), F32)

    def _weight(self, data: bytes, type_id: int) -> dict[str, int]:
        self.weights += bytes(-len(self.weights) % 64)
        offset = len(self.weights)
        self.weights += data
        return {"arena": E["CX_ARENA_WEIGHTS"], "type": type_id, "offset": offset}

    def file_matrix(self, n: int, k: int) -> dict[str, int]:
        """q8_0 at an odd offset of the mapped file."""
        blocks = np.zeros((n * k // 32, 34), np.uint8)
        blocks[:, :2] = np.array([0.002], np.float16).view(np.uint8)
        blocks[:, 2:] = self.random.integers(0, 256, (len(blocks), 32))
        offset = len(self.file)
        self.file += blocks.tobytes()
        return {"arena": E["CX_ARENA_FILES"], "type": Q8_0, "offset": offset}

    def layer_cache(self) -> dict[str, int]:
        offset = self.cache
        n_bytes = SLOTS * KV_HEADS * CONTEXT * HEAD_DIM * (4 if self.cache_type == F32 else 2)
        self.cache += -(-n_bytes // 64) * 64
        return {"arena": E["CX_ARENA_KV"], "type": self.cache_type, "offset": offset}

    # --- ops

    def op(self, kind: str, rows: str = "STEP", **fields: Any) -> None:
        head = {"op": E[f"CX_OP_{kind.upper()}"], "rows": E[f"CX_ROWS_{rows}"], "layer": 0}
        self.records.append((f"cx_op_{kind.removesuffix('_int8')}", {"head": head, **fields}))

    def norm(self, x: Any, rows: str = "STEP", n_rows: int = MAX_ROWS) -> Any:
        y = self.act(DIM, n_rows)
        self.op(
            "rms_norm", rows, dim=DIM, eps=1e-5, x=x[0], x_stride=x[1], y=y[0], y_stride=y[1],
            weight=self.vector(DIM),
        )  # fmt: skip
        return y

    def linear(self, x: Any, k: int, parts: list[Any], rows: str = "STEP", **more: Any) -> None:
        self.op(
            "linear", rows, k=k, n_parts=len(parts), x=x[0], x_stride=x[1], **more,
            parts=[
                {"weight": weight, "n": n, "y": y[0], "y_stride": y[1]} | extra
                for weight, n, y, extra in parts
            ],
        )  # fmt: skip

    def _emit(self) -> None:
        x = self.act(DIM)
        self.op("embed", dim=DIM, vocab=VOCAB, y=x[0], y_stride=x[1], table=self.matrix(VOCAB, DIM))
        angles = self.act(HEAD_DIM)
        self.op(
            "rope_angles", half=HEAD_DIM // 2, scale=1.0, inv_freq=self.vector(HEAD_DIM // 2),
            y=angles[0], y_stride=angles[1],
        )  # fmt: skip
        self._attention(x, angles)
        self._mlp(x)
        if self.int8:
            self._mlp_int8(x)
        chosen = self.act(DIM, MAX_OUT)
        self.op(
            "select_rows", "OUTPUT", dim=DIM, x=x[0], x_stride=x[1], y=chosen[0], y_stride=chosen[1]
        )
        last = self.norm(chosen, "OUTPUT", MAX_OUT)
        self.logits = self.act(VOCAB, MAX_OUT)
        self.linear(last, DIM, [(self.matrix(VOCAB, DIM), VOCAB, self.logits, {})], "OUTPUT")

    def _attention(self, x: Any, angles: Any) -> None:
        h = self.norm(x)
        q, k, v = self.act(HEADS * HEAD_DIM), *(self.act(KV_HEADS * HEAD_DIM) for _ in range(2))
        bias = {"bias": self.vector(HEADS * HEAD_DIM, -1, 1)}
        widths = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        self.linear(
            h, DIM,
            [
                (self.matrix(widths[0], DIM), widths[0], q, bias),
                (self.matrix(widths[1], DIM), widths[1], k, {}),
                (self.matrix(widths[1], DIM), widths[1], v, {}),
            ],
        )  # fmt: skip
        shape = {
            "n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "context": CONTEXT,
            "n_slots": SLOTS, "k_cache": self.layer_cache(), "v_cache": self.layer_cache(),
        }  # fmt: skip
        self.op(
            "rope_store", **shape, rope_dim=HEAD_DIM, style=E["CX_ROPE_HALF"], eps=1e-5,
            q=q[0], q_stride=q[1], k=k[0], k_stride=k[1], v=v[0], v_stride=v[1],
            angles=angles[0], angles_stride=angles[1], q_norm=self.vector(HEAD_DIM),
            k_norm=self.vector(HEAD_DIM),
        )  # fmt: skip
        y = self.act(HEADS * HEAD_DIM)
        self.op(
            "attention", **shape, scale=HEAD_DIM**-0.5, q=q[0], q_stride=q[1], y=y[0], y_stride=y[1]
        )
        self.linear(
            y, DIM, [(self.matrix(DIM, DIM), DIM, x, {})], residual=x[0], residual_stride=x[1]
        )

    def _mlp(self, x: Any) -> None:
        h, f = self.norm(x), self.act(FFN)
        self.op(
            "gated_linear", k=DIM, n=FFN, act=E["CX_ACT_SILU"], x=h[0], x_stride=h[1], y=f[0],
            y_stride=f[1], gate=self.file_matrix(FFN, DIM), up=self.file_matrix(FFN, DIM),
        )  # fmt: skip
        self.linear(
            f, FFN, [(self.matrix(DIM, FFN), DIM, x, {})], residual=x[0], residual_stride=x[1]
        )

    def quantize(self, x: Any, width: int) -> Any:
        y = self.act(width // 32 * E["CX_INT8_GROUP_FLOATS"])
        self.op("quantize", dim=width, x=x[0], x_stride=x[1], y=y[0], y_stride=y[1])
        return y

    def _mlp_int8(self, x: Any) -> None:
        h, f = self.quantize(self.norm(x), DIM), self.act(FFN)
        self.op(
            "gated_linear_int8", k=DIM, n=FFN, act=E["CX_ACT_SILU"], x=h[0], x_stride=h[1],
            y=f[0], y_stride=f[1], gate=self.file_matrix(FFN, DIM), up=self.file_matrix(FFN, DIM),
        )  # fmt: skip
        g = self.quantize(f, FFN)
        self.op(
            "linear_int8", k=FFN, n_parts=1, x=g[0], x_stride=g[1], residual=x[0],
            residual_stride=x[1],
            parts=[
                {"weight": self.file_matrix(DIM, FFN), "n": DIM, "y": x[0], "y_stride": x[1]}
            ],
        )  # fmt: skip

    # --- the whole

    def head(self, **changes: Any) -> bytes:
        fields = {
            "magic": E["CX_PLAN_MAGIC"], "version": E["CX_PLAN_VERSION"],
            "n_ops": len(self.records), "n_arenas": E["CX_ARENA_FILES"] + 1, "max_rows": MAX_ROWS,
            "max_out": MAX_OUT, "vocab": VOCAB, "context": CONTEXT, "n_slots": SLOTS,
            "logits_stride": self.logits[1], "logits": self.logits[0],
        }  # fmt: skip
        return native.pack_op("cx_plan_head", fields | changes)

    def image(self) -> bytes:
        return self.head() + b"".join(native.pack_op(name, op) for name, op in self.records)

    def arenas(self) -> list[Any]:
        """Memory for one model: exactly as much as the plan uses."""
        made = [native.allocate(n) for n in (self.activations, self.cache, len(self.weights))]
        made[2][: len(self.weights)] = bytes(self.weights)
        exact = (self.activations, self.cache, len(self.weights))
        views = [memoryview(memory)[:n] for memory, n in zip(made, exact, strict=True)]
        return [None, *views, bytes(self.file)]
