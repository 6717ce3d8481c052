"""The mean loss of a model on a text, with each kind of activations: what int8 costs.

python tools/loss.py MODEL TEXTFILE [--tokens N] [--window N] [--threads N]. The text's first
tokens are cut into windows of N, each read from an empty context; every token but a window's first
is scored. Prints nats per token, perplexity, and how often the most likely token stays the same.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caldrix.compile.program import Program
from caldrix.engine.load import LoadOptions, load_model

KINDS = ("f32", "int8")
Array = npt.NDArray[np.float64]


def window_losses(program: Program, ids: Sequence[int]) -> tuple[Array, npt.NDArray[np.intp]]:
    """The loss of every token after the first, and the most likely token in each place."""
    losses, best = [], []
    for start in range(0, len(ids), program.max_out):
        part = ids[start : start + program.max_out]
        positions = range(start, start + len(part))
        program.step(part, positions, [0] * len(part), range(len(part)), None)
        logits = program.logits[: len(part)].astype(np.float64)
        wanted = ids[start + 1 : start + 1 + len(part)]
        top = logits.max(axis=1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        losses.append(total[: len(wanted)] - logits[np.arange(len(wanted)), wanted])
        best.append(logits[: len(wanted)].argmax(axis=1))
    return np.concatenate(losses), np.concatenate(best)


def measure(path: Path, text: str, kind: str, asked: argparse.Namespace) -> tuple[Array, Array]:
    """Losses and most likely tokens over all windows."""
    options = LoadOptions(
        max_context=asked.window, max_out=64, threads=asked.threads, activations=kind
    )
    model = load_model(path, options, lambda line: None)
    ids = model.tokenizer.encode(text)[: asked.tokens]
    windows = [ids[at : at + asked.window] for at in range(0, len(ids) - 1, asked.window)]
    found = [window_losses(model.program, window) for window in windows]
    model.program.close()
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def main() -> None:
    parser = argparse.ArgumentParser(description="The mean loss on a text, f32 beside int8.")
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=8192, help="how many of the text")
    parser.add_argument("--window", type=int, default=1024, help="tokens read in one go")
    parser.add_argument("--threads", type=int, default=None)
    asked = parser.parse_args()
    text = asked.text.read_text(encoding="utf8")
    results = {kind: measure(asked.model, text, kind, asked) for kind in KINDS}
    exact, exact_best = results["f32"]
    print(f"{asked.model.name}, {len(exact)} tokens of {asked.text.name}")
    for kind, (losses, best) in results.items():
        mean, change = losses.mean(), losses.mean() - exact.mean()
        same = (best == exact_best).mean()
        print(
            f"{kind:<5} {mean:.5f} nats/token ({change:+.5f}), perplexity {math.exp(mean):.4f},"
            f" mean |change| {np.abs(losses - exact).mean():.5f}, same best token {same:.2%}"
        )


if __name__ == "__main__":
    main()
