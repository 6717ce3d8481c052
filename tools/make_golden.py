"""Makes tests/golden/tiny.json: what the reference computes for the models of tests/tiny.py.

    pip install torch==2.13.0 transformers==5.24.0
    python tools/make_golden.py

For each model and prompt: greedy ids, their log-probabilities and margins, and the whole last row
of log-probabilities, in float32 on a CPU; and how far its own bfloat16 run is from that on the same
tokens (mean and worst difference), which is the bound on ours. Needs torch; nothing at run time
does.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import tiny  # noqa: E402

PROMPTS = ["a", "The capital of France is", "def main():\n    return", "x = [1, 2, 3]\n" * 7]
N_NEW = 24
ROUND = 5


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.double(), -1)


def greedy(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """N_NEW greedy tokens, and the log-probabilities of every row of prompt and reply."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(N_NEW):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        rows = log_softmax(model(input_ids=torch.tensor([ids])).logits[0])
    return ids[len(prompt) :], rows


def case(model: torch.nn.Module, half: torch.nn.Module, text: str) -> dict[str, object]:
    prompt = list(text.encode())
    reply, rows = greedy(model, prompt)
    at = torch.arange(len(prompt) - 1, len(prompt) + len(reply) - 1)
    chosen = rows[at, torch.tensor(reply)]
    best = torch.topk(rows[at], 2).values
    with torch.no_grad():
        ids = torch.tensor([prompt + reply])
        off = (log_softmax(half(input_ids=ids).logits[0]) - rows)[at].abs()
    return {
        "prompt_ids": prompt,
        "greedy_ids": reply,
        "logprobs": [round(float(v), ROUND) for v in chosen],
        "margins": [round(float(a - b), ROUND) for a, b in best],
        "last_row": [round(float(v), ROUND) for v in rows[at[-1]]],
        "bf16_mean": float(off.mean()),
        "bf16_max": float(off.max()),
    }


def main() -> None:
    torch.set_num_threads(2)
    out = []
    for model in tiny.MODELS:
        with tempfile.TemporaryDirectory() as folder:
            tiny.write_model(Path(folder), model)
            load = transformers.AutoModelForCausalLM.from_pretrained
            full = load(folder, dtype=torch.float32, attn_implementation="eager").eval()
            half = load(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
            cases = [case(full, half, text) for text in PROMPTS]
        out.append({"model": model.name, "cases": cases})
        margin = min(min(c["margins"]) for c in cases)
        print(model.name, "smallest margin", margin, "bf16", cases[0]["bf16_mean"])
    made_with = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    made_with["numpy"] = np.__version__
    target = ROOT / "tests" / "golden" / "tiny.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"made_with": made_with, "models": out}, separators=(",", ":")))
    print(target, target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
