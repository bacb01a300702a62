"""What `rlharness diff` prints, whole against goldens, and as JSON."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from harness.render.divergence import verdict_text, where
from harness.render.serialise import serialised
from harness.trace.diff import diff
from harness.trace.format import Kept, RecordedValue, Scope
from harness.trace.manifest import Fingerprint, Manifest
from harness.trace.reader import read_trace
from harness.trace.values import Float
from harness.trace.verdict import Verdict
from tests.support.manual import goldens
from tests.support.traces import (
    flip_bit,
    manifest_of,
    recorded_value,
    scalar,
    steps_of,
    trace,
    trace_of_ranks,
    trace_of_values,
    value,
    write,
)

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


def equal(directory: Path) -> Verdict:
    return diff(trace(directory / "a", steps_of(40)), trace(directory / "b", steps_of(40)))


def loss_bits(step: int, *, is_sick: bool) -> int:
    """A loss that falls, as a float32; that of the sick run is off by one bit in step 8, and by more ever after."""
    bits = Float.of(0.2 + 2.3 * 0.93**step, "f32").bits
    return bits + (2 ** min(step - 8, 21) if is_sick and step > 7 else 0)


def diverged(directory: Path) -> Verdict:
    """One bit of a gradient of one rank of two, from step 7 on; the loss a step later; threads other."""
    traces = []
    for side, threads in (("a", "1"), ("b", "2")):
        parts = {"identity": {"seed": "7"}, "perturbation": {"world size": "2", "variable OMP_NUM_THREADS": threads}}
        manifest = Manifest(Fingerprint(**parts), world_size=2, level="deterministic")
        for rank in range(2):
            change = flip_bit(7 if side == "b" and rank == 1 else 99, "backward", "layers.1.weight")
            steps = [
                [
                    scalar("loss", "loss", loss_bits(step, is_sick=side == "b")) if each.name == "loss" else each
                    for each in recorded_values
                ]
                for step, recorded_values in enumerate(steps_of(40, change))
            ]
            write(directory / side, steps, manifest, rank=rank)
        traces.append(read_trace(directory / side))
    return diff(*traces)


def values(directory: Path) -> Verdict:
    """A loss one unit in the last place away, with other numerics."""
    a = trace(
        directory / "a", steps_of(3), manifest_of(numerics={"python": "CPython 3.11.7", "library libm.so.6": "d6"})
    )
    off = [[scalar("loss", "loss", 0x3F800003) if each.name == "loss" else each for each in s] for s in steps_of(3)]
    b = trace(directory / "b", off, manifest_of(numerics={"python": "CPython 3.12.1"}))
    return diff(a, b)


def incomplete(directory: Path) -> Verdict:
    return diff(trace(directory / "a", steps_of(3)), trace(directory / "b", steps_of(2), complete=False))


def tokens(directory: Path) -> Verdict:
    """Training with reinforcement: a logit one unit in the last place away flips tokens, and so a reward."""

    def step(number: int, sick_from: int) -> list[Kept]:
        is_other = number >= sick_from
        ids = [100 * number + at for at in range(48)]
        if is_other:
            ids[29:32] = [7, 7, 7]
        logprobs = [-0.5 - at / 64 for at in range(48)]
        if is_other:
            logprobs[28] = math.nextafter(logprobs[28], 0)
        rewards = [1.0, 0.0, 0.0 if is_other else 1.0, 1.0, 0.0, 1.0]
        advantages = [reward - sum(rewards) / len(rewards) for reward in rewards]
        weights = [number + at / 7 + (is_other and at % 3 == 0) / 1024 for at in range(12)]
        return [
            state("random.torch", number),
            state("random.python", (number, number >= 2 and sick_from < 99)),
            value("rollout", "logprobs", "f64", (4, 12), struct.pack("<48d", *logprobs)),
            value("rollout", "tokens", "i64", (4, 12), struct.pack("<48q", *ids)),
            value("reward", "reward", "f32", (6,), struct.pack("<6f", *rewards)),
            value("advantage", "advantage", "f32", (6,), struct.pack("<6f", *advantages)),
            value("optimizer", "w", "f32", (3, 4), struct.pack("<12f", *weights)),
        ]

    def state(name: str, content: object) -> Kept:
        data = repr(content).encode().ljust(20)
        recorded_value, _ = value("rollout", name, "state", (), data)
        return recorded_value._replace(scope=Scope.CONTEXT), data

    a = trace_of_values(directory / "a", [step(number, 99) for number in range(6)])
    b = trace_of_values(directory / "b", [step(number, 4) for number in range(6)])
    return diff(a, b)


MADE = {"equal": equal, "diverged": diverged, "values": values, "incomplete": incomplete, "tokens": tokens}


@pytest.mark.parametrize("name", MADE)
def test_the_text_is_the_golden(golden: Callable[[str, str], None], tmp_path: Path, name: str) -> None:
    golden(f"diff_{name}.txt", verdict_text(MADE[name](tmp_path), colour=False) + "\n")


def test_the_manual_shows_the_goldens() -> None:
    names = ("diff_equal", "diff_diverged")
    assert goldens(r"diff_\w*") == {name: (GOLDEN / f"{name}.txt").read_text("utf-8") for name in names}


def test_the_json_holds_what_the_text_says(tmp_path: Path) -> None:
    told = json.loads(json.dumps(serialised(values(tmp_path))))
    assert (told["exit_code"], told["verdict"], told["num_steps_different"]) == (11, "not_comparable", 3)
    assert [each["code"] for each in told["reason_codes"]] == ["numerics_differ"]
    assert len(told["reasons"]) == 1
    first = told["first"]
    assert (first["step"], first["what"], first["rank"], first["ranks"]) == (0, "value", 0, [0])
    assert first["value"] == {
        "num_elements": 1,
        "num_different": 1,
        "first": 0,
        "a": "1.0",
        "b": "1.0000004",
        "num_compared": 1,
        "max_ulp": 3,
        "max_abs": 3 * 2.0**-23,
        "num_nan_only_a": 0,
        "num_nan_only_b": 0,
        "num_nan_both": 0,
    }
    named = {"phase": "loss", "name": "loss", "occurrence": 0, "scope": "logical", "dtype": "f32", "shape": []}
    assert first["a"] == {**named, "algorithm": "raw", "digest": "0000803f" + "0" * 24}
    assert told["fingerprints"]["numerics"][0] == {"name": "library libm.so.6", "a": "d6", "b": None}
    assert told["curve"] == [{"step": 0, "name": "loss", "a": ["f32:3f800000", 1.0], "b": ["f32:3f800003", 1.0000004]}]
    assert (first["num_before"], first["phases_before"], first["num_microbatches"]) == (2, ["rollout", "forward"], 1)
    assert (told["part"], told["context"], told["attribution"], told["num_ranks"]) == (None, None, None, 1)


def test_a_step_that_one_has_more(tmp_path: Path) -> None:
    verdict = diff(trace(tmp_path / "a", steps_of(2)), trace(tmp_path / "b", steps_of(3)))
    assert verdict_text(verdict, colour=False).splitlines() == [
        "DIVERGED  step 2 exists only in B",
        "  different steps: 1 of 3",
        "  likely cause: A ended after step 1, and all that both have is equal: look for a limit of time, a condition"
        " on a value that is not recorded, and the length of the data",
    ]
    assert serialised(verdict)["first"]["a"] is None


def test_floats_only_is_said_of_leaves_and_not_of_steps_that_are_missing(tmp_path: Path) -> None:
    def step(last: float) -> list[Kept]:
        ids = value("rollout", "batch.ids", "i64", (2, 2), struct.pack("<4q", *range(4)))
        return [ids, value("loss", "loss", "f32", (1,), struct.pack("<f", last))]

    a = trace_of_values(tmp_path / "a", [step(1), step(1)])
    for number, (steps, is_floats_only) in enumerate((([step(1), step(2)], True), ([step(1)], False))):
        verdict = diff(a, trace_of_values(tmp_path / str(number), steps))
        (line,) = [line for line in verdict_text(verdict, colour=False).splitlines() if "unchanged" in line]
        num = 8 if is_floats_only else 4
        floats = "floats only; " if is_floats_only else ""
        assert line == f"  {floats}unchanged: {num} integers and texts of batches"
        assert serialised(verdict)["attribution"]["is_floats_only"] is is_floats_only


def test_payloads_zeros_and_many_elements(tmp_path: Path) -> None:
    def told(a: bytes, b: bytes) -> list[str]:
        shape = (len(a) // 4,)
        recorded_values = [
            RecordedValue("loss", "loss", 0, "f32", shape, "raw", each.ljust(16, b"\0")) for each in (a, b)
        ]
        number = len(list(tmp_path.iterdir()))
        a_trace, b_trace = (
            trace(tmp_path / f"{number}{side}", [[recorded_value]])
            for side, recorded_value in zip("ab", recorded_values, strict=True)
        )
        return verdict_text(diff(a_trace, b_trace), colour=False).splitlines()

    nan = told(struct.pack("<I", 0x7FC00000), struct.pack("<I", 0x7FC00001))
    assert nan[0] == "DIVERGED  step 0: the loss differs, nan (7fc00000) against nan (7fc00001) (NaN payloads only)"
    assert nan[1:5] == [
        "  loss loss",
        "    A  f32 [1]  nan (7fc00000)",
        "    B  f32 [1]  nan (7fc00001)",
        "    NaN in both, with different payloads",
    ]
    assert told(struct.pack("<f", 0.0), struct.pack("<f", -0.0))[4] == "    only in the sign of zero"
    many = told(struct.pack("<3f", 1, 2, 3), struct.pack("<3f", 1, 2.5, 3.5))
    assert many[2] == "    A  f32 [3]  2.0 at element 1"
    assert many[4] == "    2 of 3 elements differ, at most 0.5 apart"


def test_a_leaf_that_one_has_more_and_ranks_parts(tmp_path: Path) -> None:
    part = recorded_value("forward", "hidden", 1, scope=Scope.PHYSICAL)
    a = trace(tmp_path / "a", [[part, recorded_value("loss", "loss", 1)]])
    b = trace(tmp_path / "b", [[part._replace(digest=bytes(16)), recorded_value("loss", "loss", 1)]])
    assert verdict_text(diff(a, b), colour=False).splitlines() == [
        "EQUAL  1 step, every recorded bit",
        "  first difference in microbatches (does not affect the verdict): step 0, forward hidden",
    ]
    c = trace(tmp_path / "c", [[part]])
    lines = verdict_text(diff(a, c), colour=False).splitlines()
    assert lines[0] == "DIVERGED  step 0: only A has the loss"
    assert lines[3:5] == [
        "    B  does not record it",
        "  equal before it: 1 value of forward; the last: forward hidden",
    ]


def test_a_micro_batch_and_a_batch_are_called_by_their_names(tmp_path: Path) -> None:
    def place(phase: str, sick: int, num_ranks: int) -> str:
        directory = tmp_path / f"{phase}{sick}{num_ranks}"
        traces = []
        for side in "ab":
            parts = [
                recorded_value(
                    phase, "x", (number, side == "b" and number >= sick), scope=Scope.PHYSICAL, occurrence=number
                )
                for number in range(3)
            ]
            whole = [[*parts, recorded_value("sync", "w", side)]]
            traces.append(trace_of_ranks(directory / side, [whole] * num_ranks))
        first = diff(*traces).first
        assert first is not None
        return where(first, num_ranks).partition("step 0, ")[2]

    assert place("loss", 0, 1) == "loss x in microbatch 0"
    assert place("loss", 2, 1) == "loss x in microbatch 2"
    assert place("rollout", 1, 1) == "rollout x in batch 1"
    assert place("loss", 2, 2) == "loss x in microbatch 2 (this rank's part), rank 0"


def test_an_element_of_a_shard_has_no_place_in_the_whole(tmp_path: Path) -> None:
    def kept(last: float) -> Kept:
        data = struct.pack("<6f", 1, 2, 3, 4, 5, last)
        part = RecordedValue("backward", "w", 0, "f32", (4, 3), "shardsum_128", xxh3_128_digest(data), Scope.SHARD)
        return part, data

    a, b = (trace_of_values(tmp_path / str(last), [[kept(last)]]) for last in (6, 7))
    assert verdict_text(diff(a, b), colour=False).splitlines()[2:5] == [
        "    A  f32 [4, 3]  6.0 at element 5",
        "    B  f32 [4, 3]  7.0 at element 5",
        "    1 of 6 elements differ, at most 1 apart",
    ]


def test_names_from_elsewhere_cannot_move_the_cursor(tmp_path: Path) -> None:
    name = "w\x1b[2J\nx\u202e"
    a = trace(tmp_path / "a", [[recorded_value("backward", name, 1)]], manifest_of(subject={name: "1"}))
    b = trace(tmp_path / "b", [[recorded_value("backward", name, 2)]], manifest_of(subject={name: name}))
    text = verdict_text(diff(a, b), colour=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "w\\x1b[2J x\\u202e" in text


def test_libraries_are_counted_and_long_lists_are_cut(tmp_path: Path) -> None:
    """As a run in another environment has them."""
    kinds = (*(f"package p{number:02}" for number in range(9)), *(f"library l{number:02}.so" for number in range(5)))
    a = trace(tmp_path / "a", [], manifest_of(numerics={"package numpy": "2.4.1", "library l00.so": "d6"}))
    b = trace(tmp_path / "b", [], manifest_of(numerics={"package numpy": "2.2.6", **dict.fromkeys(kinds, "1")}))
    verdict = diff(a, b)
    heading, first, *_, more, libraries = verdict_text(verdict, colour=False).splitlines()[-11:]
    assert heading == "  hardware or software differs"
    assert first == "    package numpy  A 2.4.1  B 2.2.6"
    assert (more, libraries) == ("    and 2 more", "    5 shared libraries differ: --json lists them")
    assert len(serialised(verdict)["fingerprints"]["numerics"]) == 15
