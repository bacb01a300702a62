"""What is printed of the operations of a step, whole against a golden, and as JSON."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.render.divergence import verdict_text
from harness.render.operations import FROM_WORKER, MAX_VALUES, PHRASES, operations_text
from harness.render.serialise import serialised
from harness.trace.diff import diff
from harness.trace.ops import OpDifference, OpDivergence, Operation, OpRecord, OpValue, OpVerdict, compare_ops
from harness.trace.reader import read_trace
from tests.support.traces import flip_bit, steps_of, write, write_ops


def digest(digit: str, shape: str = "16,8", *layout: str) -> OpValue:
    return OpValue("f32", shape, "xxh3_128", digit * 32, layout)


def number(bits: int) -> OpValue:
    return OpValue("f32", "", "raw", struct.pack("<I", bits).ljust(16, b"\0").hex())


EMBED = Operation(
    *(0, "forward", "aten.index.Tensor", "train.py:31 forward", "", "tensor, [tensor]"),
    inputs=(digest("1"), digest("2", "100")),
    makers=(-1, -1),
    random="",
    outputs=(digest("3", "100,8"),),
)
DROP = replace(
    EMBED,
    index=1,
    name="aten.bernoulli_.float",
    at="train.py:33 forward",
    via="transformers/models/llama/modeling_llama.py:90 forward",
    arguments="tensor, 0.5",
    inputs=(OpValue("f32", "100,8", "none", "overwritten"),),
    makers=(0,),
    random="xxh3_128 " + "4" * 32,
)
LOSS = replace(
    EMBED, index=2, name="aten.mean.default", arguments="tensor", makers=(1, -1), outputs=(number(0x3DCCCCCD),)
)
STORE = replace(EMBED, index=3, phase="backward", name="aten.index_put.default", makers=(2, -1))
LIFT = replace(EMBED, name="aten.lift_fresh.default", inputs=(digest("2", "3"),), makers=(-1,), outputs=())
ALL = [EMBED, DROP, LOSS, STORE]


def verdict(place: int, problem: str = "", **changes: object) -> OpVerdict:
    b = [replace(each, **changes) if number == place else each for number, each in enumerate(ALL)]  # type: ignore[arg-type]
    return compare_ops(OpRecord(Path(), tuple(ALL), ""), OpRecord(Path(), tuple(b), problem), 1, 7)


VERDICTS = {
    "equal": verdict(9),
    "other outputs of equal inputs": verdict(3, outputs=(digest("5", "100,8"),)),
    "known values": verdict(2, outputs=(number(0x3DCCCCCE),)),
    "the batch": verdict(0, inputs=(digest("1"), digest("6", "100"))),
    "a value from Python": compare_ops(
        OpRecord(Path(), (LIFT,), ""), OpRecord(Path(), (replace(LIFT, inputs=(digest("6", "3"),)),), ""), 1, 7
    ),
    "what another operation wrote": verdict(3, inputs=(digest("7", "16,8", "align=16"), digest("2", "100"))),
    "the random state": verdict(1, random="xxh3_128 " + "8" * 32, outputs=(digest("9", "100,8"),)),
    "other arguments": verdict(2, arguments="tensor, dim=1", at="train.py:40 loss"),
    "another operation": verdict(1, name="aten.mul.Tensor"),
    "a record that was cut": verdict(9, "its recording was cut"),
}


def test_the_texts_are_the_golden(golden: Callable[[str, str], None]) -> None:
    made = "".join(f"{title}\n" + "\n".join(operations_text(each)) + "\n\n" for title, each in VERDICTS.items())
    golden("operations.txt", made)


def test_long_lists_are_cut_and_control_characters_are_not_obeyed() -> None:
    many = tuple(digest("1") for _ in range(MAX_VALUES + 3))
    others = tuple(digest("2") for _ in many)
    a, b = ([replace(EMBED, at="a\x1b[2J.py:1 f", outputs=outputs)] for outputs in (many, others))
    text = operations_text(compare_ops(OpRecord(Path(), tuple(a), ""), OpRecord(Path(), tuple(b), ""), 0, 0))
    assert [line.strip() for line in text if "more" in line] == ["and 3 more"]
    assert sum(line.strip()[1:5] == ": A " for line in text) == MAX_VALUES
    assert "\x1b" not in "".join(text)


def test_the_verdict_on_two_traces_shows_the_operations_of_its_step(tmp_path: Path) -> None:
    a = write(tmp_path / "a", steps_of(9))
    b = write(tmp_path / "b", steps_of(9, flip_bit(7, "backward", "layers.1.weight")))
    for side, operations in ((a, ALL), (b, [*ALL[:3], replace(STORE, outputs=(digest("5", "100,8"),))])):
        write_ops(side, operations)
    verdict = diff(read_trace(a), read_trace(b))
    text = verdict_text(verdict, colour=False)
    assert "  operations of step 7, rank 0: A 4, B 4\n    first operation that differs: backward aten.index_put" in text
    shown = serialised(verdict)["operations"]
    assert (shown["first"]["what"], shown["first"]["a"]["at"]) == ("output", "train.py:31 forward")
    assert diff(read_trace(a), read_trace(a)).operations is None


def test_a_batch_from_a_worker_is_explained() -> None:
    taken = replace(EMBED, name="aten.set_.source_Storage_storage_offset", inputs=(), makers=())
    a, b = (replace(taken, outputs=(digest("1", each),)) for each in "23")
    found = OpDivergence(OpDifference.OUTPUT, a, b, (), (False,))
    lines = "\n".join(operations_text(OpVerdict(0, 0, 1, 1, found)))
    assert FROM_WORKER in lines
    assert PHRASES[OpDifference.OUTPUT] not in lines
