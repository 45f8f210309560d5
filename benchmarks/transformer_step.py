"""Trains one transformer with ``torch.nn.Linear`` and with ``tilewright.torch.Linear`` side by side, and writes a record.

    python benchmarks/transformer_step.py OUT.jsonl [STEPS]

The model has 12 layers of width 768 and 12 heads, sequences of 512 tokens, 32 in a batch; weights and AdamW are float32,
products bfloat16 by autocast, and ``torch.compile`` compiles each layer and the loss. The language is synthetic: sentences
of one of four topics, in which the next word depends on the topic and on the last two words; so the loss falls as on text.

Three copies start from the same weights and see the same batches: compiled with ``nn.Linear`` ("torch"), compiled with our
Linear ("tilewright"), and not compiled, with PyTorch's product to which the bias is added afterwards ("apart"): it rounds in
other places than the first, and so shows how far two right curves differ. The two compiled ones take turns of a few steps; a
sample is the time of such a turn, from its first launch until all of its work is done, divided by its steps. The first
turns, which compile, are not timed.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import tilewright.torch
from tilewright.lab.inputs.environment import environment

LAYERS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 12, 768, 12, 512, 32, 4096
STEPS, TURN, WARM_UP, RATE = 200, 5, 40, 3e-4


class Apart(nn.Linear):
    """PyTorch's product and bias, each rounded."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result = input @ self.weight.t()
        return result + self.bias.to(result.dtype)


class Layer(nn.Module):
    """Causal attention and two linear layers around GELU, each added to its normalised input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attended(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Head(nn.Module):
    """The mean loss of the next word."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.words(self.norm(x)).flatten(0, 1).float(), following.flatten())


class Transformer(nn.Module):
    """A decoder of ``layers`` layers; called with words, it returns the loss."""

    def __init__(self, layers: int, width: int, heads: int, length: int, words: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = Head(width, words)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.word(words[:, :-1]) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(x, words[:, 1:])

    def compile_parts(self) -> None:
        """Compile each layer and the head: the layers share one compilation."""
        for part in (*self.layers, self.head):
            part.compile(fullgraph=True)


def sentences(count: int, length: int, words: int, seed: int = 1) -> np.ndarray:
    """``count`` rows of ``length`` words. Each word has eight successors in each topic, the first the most probable, and few
    words are successors of many; every fourth word repeats the one before the last."""
    rng = np.random.default_rng(seed)
    successors = (words * rng.random((4, words, 8)) ** 4).astype(np.int64)
    chances = 1 / np.arange(1, 9)
    choices = rng.choice(8, (length, count), p=chances / chances.sum())
    repeats = rng.random((length, count)) < 0.25
    topic, text = rng.integers(0, 4, count), np.empty((length, count), np.int64)
    text[0] = text[1] = rng.integers(0, words, count)
    for i in range(2, length):
        text[i] = np.where(repeats[i], text[i - 2], successors[topic, text[i - 1], choices[i]])
    return text.T.copy()


class Training:
    """A model with its optimizer, and its losses so far."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
        self.losses: list[torch.Tensor] = []

    def step(self, words: torch.Tensor) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * min(1, (len(self.losses) + 1) / WARM_UP)
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.model(words)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())


def turn(training: Training, batches: torch.Tensor) -> float:
    """Seconds a step."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for words in batches:
        training.step(words)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(batches)


def trained(steps: int) -> dict[str, Any]:
    """The losses of the three copies, and the seconds a step of the two that are compiled."""
    torch.manual_seed(1)
    base = Transformer(LAYERS, WIDTH, HEADS, LENGTH, WORDS).cuda()
    copies = {name: Training(copy.deepcopy(base)) for name in ("torch", "tilewright", "apart")}
    tilewright.torch.replace_linear(copies["tilewright"].model)
    for module in copies["apart"].model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Apart
    for name in ("torch", "tilewright"):
        copies[name].model.compile_parts()
    batches = torch.from_numpy(sentences(steps * BATCH, LENGTH + 1, WORDS)).cuda().view(steps, BATCH, LENGTH + 1)
    seconds: dict[str, list[float]] = {"torch": [], "tilewright": []}
    first: dict[str, float] = {}
    for number, start in enumerate(range(0, steps, TURN)):
        for name in sorted(seconds, reverse=bool(number % 2)):
            took = turn(copies[name], batches[start : start + TURN])
            if number:
                seconds[name].append(took)
            else:
                first[name] = took * TURN
    turn(copies["apart"], batches)
    losses = {name: torch.stack(one.losses).tolist() for name, one in copies.items()}
    return {"losses": losses, "step_s": seconds, "first_turn_s": first}


def difference(one: list[float], other: list[float]) -> float:
    """The largest difference of two curves, each first averaged over 10 steps."""
    means = [np.convolve(curve, np.ones(10) / 10, "valid") for curve in (one, other)]
    return float(np.abs(means[0] - means[1]).max())


def main(path: str, steps: int) -> None:
    began = time.perf_counter()
    facts = environment(
        operands="synthetic sentences", command=f"python benchmarks/transformer_step.py OUT.jsonl {steps}"
    )
    found = trained(steps)
    losses, medians = found["losses"], {name: float(np.median(each)) for name, each in found["step_s"].items()}
    record = {
        "benchmark": "transformer step",
        "environment": facts | {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()},
        "model": {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "length": LENGTH, "batch": BATCH, "words": WORDS},
        "steps": steps,
        **found,
        "difference": {name: difference(losses["torch"], losses[name]) for name in ("tilewright", "apart")},
        "ratio": medians["torch"] / medians["tilewright"],
        "took_s": time.perf_counter() - began,
    }
    Path(path).write_text(json.dumps(record) + "\n", encoding="utf-8")
    for name, curve in losses.items():
        print(f"{name:10}  loss {curve[0]:.3f} → {np.mean(curve[-10:]):.4f}", end="  ")
        print(f"{medians[name] * 1e3:.3f} ms a step" if name in medians else "")
    print(f"R {record['ratio']:.4f}; curves differ by {record['difference']}; took {record['took_s']:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
