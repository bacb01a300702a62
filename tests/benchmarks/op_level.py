"""What recording every operation of a step costs, on a transformer's training step on the CPU.

    python tests/benchmarks/op_level.py                  # 10M parameters, 8 x 128 tokens
    python tests/benchmarks/op_level.py --width 128      # small tensors: the cost per operation shows

A step is forward, backward and AdamW. Steps with and without the record take turns in one process; the ratio is that of
the medians, in wall time, which is what somebody waits for. Beside it stands the processor time, and both for one
thread. Exit status 1 where it is over 1.3 with all threads, or where the weights at the end are others than those
without any record.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn
from xxhash import VERSION

from harness.recording.operations import OpLog, OpMode

LIMIT = 1.3


class Decoder(nn.Module):
    """A causal transformer over a vocabulary of 4096, with tied embeddings."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4096, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = nn.functional.linear(self.norm(hidden), self.embedding.weight)
        return logits


class Layer(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        qkv = self.qkv(self.first_norm(hidden)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        added: torch.Tensor = self.down(nn.functional.gelu(self.up(self.second_norm(hidden))))
        return hidden + added


class Training:
    """A model and its optimizer, seeded."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(1)
        self.model = Decoder(args.width, args.layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(4096, (args.batch, args.length + 1))

    def step(self) -> None:
        """One training step."""
        logits = self.model(self.tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> list[torch.Tensor]:
        """As they are now."""
        return [parameter.detach() for parameter in self.model.parameters()]


def timed(training: Training, log: OpLog | None) -> tuple[float, float]:
    """(processor seconds, wall seconds) of a step; `log` where its operations are recorded."""
    began_s, began_wall_s = time.process_time(), time.perf_counter()
    with nullcontext() if log is None else OpMode(log):
        training.step()
    return time.process_time() - began_s, time.perf_counter() - began_wall_s


def measured(args: argparse.Namespace, directory: Path, num_threads: int) -> tuple[list[float], OpLog, bool]:
    """(processor and wall seconds without, then with; the last record; whether the weights are the same)."""
    torch.set_num_threads(num_threads)
    plain, recorded = Training(args), Training(args)
    seconds: list[list[float]] = []
    for number in range(args.pairs + 1):
        log = OpLog(directory, rank=num_threads, step=number, say=print)
        with_ops = timed(recorded, log)
        seconds.append([*timed(plain, None), *with_ops])
    medians = [statistics.median(column) for column in zip(*seconds[1:], strict=True)]  # the first one warms up
    is_same = all(torch.equal(a, b) for a, b in zip(plain.weights(), recorded.weights(), strict=True))
    return medians, log, is_same


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=320, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=9, help="steps with and without the record, in turns")
    args = parser.parse_args()
    num_parameters = sum(weight.numel() for weight in Training(args).weights())
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, torch {torch.__version__}, xxhash {VERSION}"
        f", {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {num_parameters / 1e6:.1f}M"
        f" parameters, {args.batch} x {args.length} tokens"
    )
    ratios, same = [], []
    with tempfile.TemporaryDirectory(prefix="rlh-ops-") as scratch:
        for num_threads in sorted({1, torch.get_num_threads()}):
            (cpu, wall, cpu_with, wall_with), log, is_same = measured(args, Path(scratch), num_threads)
            ratios.append(wall_with / wall)
            same.append(is_same)
            print(
                f"{num_threads} thread{'s' if num_threads > 1 else ''}: wall {wall * 1e3:.0f} -> {wall_with * 1e3:.0f}"
                f" ms, {wall_with / wall:.2f} times; processor time {cpu * 1e3:.0f} -> {cpu_with * 1e3:.0f} ms,"
                f" {cpu_with / cpu:.2f} times; weights {'bit-identical' if is_same else 'DIFFER'}"
            )
            cost_us = (cpu_with - cpu) / log.num_ops * 1e6
            num_bytes = log.path.stat().st_size / log.num_ops
            print(f"  {log.num_ops:,} operations: {cost_us:.0f} us of processor time and {num_bytes:.0f} bytes each")
    is_good = all(same) and ratios[-1] <= LIMIT
    print("PASS" if is_good else f"FAIL: over {LIMIT} times, or other weights")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
