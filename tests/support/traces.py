"""Small traces for tests, written by the real writer."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from harness.bits.digests import RAW, XXH3_128, digest
from harness.trace.format import CHAINED, PHASES, Kept, RecordedValue, Scope
from harness.trace.manifest import Fingerprint, Manifest
from harness.trace.ops import OPS, Operation, OpValue, ops_name
from harness.trace.reader import Trace, read_trace
from harness.trace.values import Float
from harness.trace.writer import TraceWriter

SEEDED = settings(derandomize=True)
VALUES = (
    ("rollout", "tokens"),
    ("forward", "logprobs"),
    ("loss", "loss"),
    ("backward", "layers.0.weight"),
    ("backward", "layers.1.weight"),
    ("optimizer", "layers.0.weight"),
)
Steps = Sequence[Sequence[RecordedValue]]
Change = Callable[[int, RecordedValue], RecordedValue | None]


def recorded_value(
    phase: str, name: str, content: object, *, scope: Scope = Scope.LOGICAL, occurrence: int = 0
) -> RecordedValue:
    """A leaf of a large tensor whose digest is that of `content`."""
    return RecordedValue(
        phase, name, occurrence, "f32", (64, 32), XXH3_128, xxh3_128_digest(repr(content).encode()), scope
    )


def scalar(phase: str, name: str, bits: int) -> RecordedValue:
    """A leaf of one float32, whose value the trace knows."""
    return RecordedValue(phase, name, 0, "f32", (), RAW, struct.pack("<I", bits).ljust(16, b"\0"))


def steps_of(num_steps: int, change: Change = lambda step, recorded_value: recorded_value) -> Steps:
    """Steps of LEAVES, the loss a known float; `change` may give each another leaf, or none."""
    made = []
    for step in range(num_steps):
        recorded_values = [
            scalar(phase, name, 0x3F800000 + step)
            if name == "loss"
            else recorded_value(phase, name, (step, phase, name))
            for phase, name in VALUES
        ]
        made.append([changed for each in recorded_values if (changed := change(step, each)) is not None])
    return made


def flip_bit(at_step: int, phase: str, name: str) -> Callable[[int, RecordedValue], RecordedValue]:
    """A change that flips one bit of one digest, of every step from `at_step` on."""

    def change(step: int, recorded_value: RecordedValue) -> RecordedValue:
        if step < at_step or (recorded_value.phase, recorded_value.name) != (phase, name):
            return recorded_value
        return recorded_value._replace(digest=bytes([recorded_value.digest[0] ^ 1]) + recorded_value.digest[1:])

    return change


def manifest_of(**parts: Mapping[str, str]) -> Manifest:
    return Manifest(Fingerprint(**{"identity": {"seed": "7"}, **parts}))


def write(
    directory: Path, steps: Steps, manifest: Manifest | None = None, *, rank: int = 0, complete: bool = True
) -> Path:
    """A trace of one rank, with a curve; returns its directory. Fails where the recording ends early."""
    said: list[str] = []
    writer = TraceWriter(directory, manifest or manifest_of(), rank=rank, say=said.append)
    for number, recorded_values in enumerate(steps):
        losses = [each.digest for each in recorded_values if each.name == "loss"]
        values = {"loss": Float("f32", int.from_bytes(losses[0][:4], "little"))} if losses else {}
        writer.append(number, recorded_values, values)
    writer.close(complete=complete)
    assert said == []
    return directory


def trace(directory: Path, steps: Steps, manifest: Manifest | None = None, *, complete: bool = True) -> Trace:
    """A trace of one rank, written and read."""
    return read_trace(write(directory, steps, manifest, complete=complete))


def value(phase: str, name: str, dtype: str, shape: tuple[int, ...], data: bytes, *, occurrence: int = 0) -> Kept:
    """A leaf of this value, and the value."""
    algorithm, digested = digest(data)
    return RecordedValue(phase, name, occurrence, dtype, shape, algorithm, digested), data


def trace_of_values(directory: Path, steps: Sequence[Sequence[Kept]], *, keeps: bool = True) -> Trace:
    """A trace of one rank that has kept its values, or not."""
    with TraceWriter(directory, manifest_of(), say=print) as writer:
        for number, values in enumerate(steps):
            writer.append(number, [recorded_value for recorded_value, _ in values], tensors=values if keeps else ())
    return read_trace(directory)


def trace_of_ranks(directory: Path, of_rank: Sequence[Steps]) -> Trace:
    """A trace of several ranks."""
    for rank, steps in enumerate(of_rank):
        write(directory, steps, replace(manifest_of(), world_size=len(of_rank)), rank=rank)
    return read_trace(directory)


names = st.text(st.characters(codec="utf-8"), max_size=8)
any_leaf = st.builds(
    RecordedValue,
    phase=st.sampled_from(PHASES),
    name=names,
    occurrence=st.integers(0, 3),
    dtype=st.sampled_from(["f32", "bf16", "i64", ""]),
    shape=st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    algorithm=st.sampled_from([RAW, XXH3_128, "own"]),
    digest=st.binary(min_size=16, max_size=16),
    scope=st.sampled_from(Scope),
)
any_leaves = st.lists(any_leaf, max_size=8, unique_by=lambda each: (each.scope not in CHAINED and each.scope, each.key))


def _text_of(value: OpValue) -> str:
    return " ".join([value.dtype, value.shape, value.algorithm, value.digest, *value.layout])


def _line_of(each: Operation) -> str:
    return json.dumps(
        {
            "k": "op",
            "i": each.index,
            "phase": each.phase,
            "op": each.name,
            "at": each.at,
            "args": each.arguments,
            "in": [_text_of(value) for value in each.inputs],
            "from": list(each.makers),
            "out": [_text_of(value) for value in each.outputs],
            **({"via": each.via} if each.via else {}),
            **({"random": each.random} if each.random else {}),
        }
    )


def write_ops(directory: Path, operations: list[Operation], *, problem: str = "", rank: int = 0, step: int = 7) -> Path:
    """A record as a recorder leaves it behind."""
    head = json.dumps({"k": "head", "version": 2, "rank": rank, "step": step})
    end = json.dumps({"k": "end", "num_ops": len(operations), "problem": problem})
    (directory / OPS).mkdir(parents=True, exist_ok=True)
    text = "\n".join([head, *map(_line_of, operations), end]) + "\n"
    (directory / OPS / ops_name(rank, step)).write_text(text)
    return directory
