"""The chain against the shipped vectors, computed here a second time from FORMAT.md alone, and what it is blind to."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest, xxh3_128_digest

import harness.trace
from harness.bits import digests
from harness.trace import format
from harness.trace.format import RecordedValue, Scope
from tests.support.traces import SEEDED, any_leaf, any_leaves, names

HERE = Path(harness.trace.__file__).parent
VECTORS = json.loads((HERE / "vectors.json").read_text("utf-8"))


def recorded_value_of(fields: dict[str, Any]) -> RecordedValue:
    changed = {"shape": tuple(fields["shape"]), "digest": bytes.fromhex(fields["digest"])}
    return RecordedValue(**{**fields, **changed, "scope": Scope(fields["scope"])})


# ------------------------------------------------------------------------------------------------------- the vectors


@pytest.mark.parametrize("vector", VECTORS["enc"])
def test_enc_agrees_with_the_vectors(vector: Any) -> None:
    assert format.enc(*vector["fields"]).hex() == vector["bytes"]


@pytest.mark.parametrize("vector", VECTORS["digests"], ids=lambda v: f"{v['dtype']}-{v['algorithm']}")
def test_digests_agree_with_the_vectors(vector: Any) -> None:
    data = bytes.fromhex(vector["bytes"])
    if vector["algorithm"] in digests.ADDITIVE:
        summed = {digests.SHARDSUM_128: digests.shardsum, digests.PACKSUM_128: digests.packsum}[vector["algorithm"]]
        assert summed(data, vector["element_bytes"], vector["first_index"]).hex() == vector["digest"]
    else:
        assert digests.digest(data) == (vector["algorithm"], bytes.fromhex(vector["digest"]))


def test_the_chain_agrees_with_the_vectors() -> None:
    link = format.chain_start(VECTORS["identity"])
    assert link.hex() == VECTORS["init"]
    log = format.HEADER
    for step in VECTORS["steps"]:
        recorded_values = [recorded_value_of(fields) for fields in step["leaves"]]
        root = format.step_root(step["step"], recorded_values)
        link = format.next_chain(link, root)
        frame = format.frame(format.step_payload(step["step"], root, link, recorded_values))
        assert (root.hex(), link.hex(), frame.hex()) == (step["root"], step["chain"], step["frame"])
        log += frame
    log += format.frame(format.done_payload(len(VECTORS["steps"])))
    assert log.hex() == VECTORS["log"]


def test_the_vectors_are_what_the_prose_says() -> None:
    """Nothing of the package: the formulas of FORMAT.md, written down here once more."""

    def enc(*fields: object) -> bytes:
        return b"".join(len(text).to_bytes(4, "little") + text for text in (str(each).encode() for each in fields))

    link = xxh3_128_digest(b"rlh1/init" + b"".join(sorted(enc(*item) for item in VECTORS["identity"].items())))
    for step in VECTORS["steps"]:
        hashes = {}
        for each in step["leaves"]:
            key = (each["phase"], each["name"], each["occurrence"])
            described = (*key, each["dtype"], ",".join(map(str, each["shape"])), each["algorithm"])
            if each["scope"] in (0, 2):
                hashes[enc(*key)] = xxh3_128_digest(enc(*described, each["digest"]))
        recorded_values = b"".join(hashes[key] for key in sorted(hashes))
        root = xxh3_128_digest(b"rlh1/step" + struct.pack("<Q", step["step"]) + recorded_values)
        link = xxh3_128_digest(b"rlh1/chain" + link + root)
        payload = bytes.fromhex(step["frame"])[4:-8]
        assert (root.hex(), link.hex()) == (step["root"], step["chain"])
        assert bytes.fromhex(step["frame"])[-8:] == xxh3_64_digest(payload)
        assert payload[:44] == b"STEP" + struct.pack("<Q", step["step"]) + root + link


@pytest.mark.parametrize("vector", [each for each in VECTORS["digests"] if "first_index" in each])
def test_the_shardable_sums_are_what_the_prose_says(vector: Any) -> None:
    """Nothing of the package: the table of FORMAT.md, written down here once more."""

    def output(seed: int, n: int) -> int:
        x = (seed + (n + 1) * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return (x ^ x >> 31) | 1

    size, data = vector["element_bytes"], bytes.fromhex(vector["bytes"])
    width = min(size, 4)
    words = {
        i: int.from_bytes(data[at : at + width], "little") + 1
        for i, at in enumerate(range(0, len(data), width), vector["first_index"] * (size // width))
    }
    if vector["algorithm"] == "packsum_128":
        packed = dict[int, int]()
        for n, element in words.items():
            packed[n // (4 // size)] = packed.get(n // (4 // size), 0) + element * 2 ** (8 * size * (n % (4 // size)))
        words = packed
    digest = b""
    for u, v in ((0x243F6A8885A308D3, 0x13198A2E03707344), (0xA4093822299F31D0, 0x082EFA98EC4E6C89)):
        lane = 0
        for i, word in words.items():
            lane += word * output(u, i % 1024) * output(v, i // 1024)
        digest += (lane % 2**64).to_bytes(8, "big")
    assert digest.hex() == vector["digest"]


# ------------------------------------------------------------------------------------------------- what it depends on


@pytest.mark.full
@SEEDED
@given(any_leaves, st.randoms(use_true_random=False), st.integers(0, 2**64 - 1))
def test_a_root_does_not_depend_on_the_order(recorded_values: list[RecordedValue], random: Any, step: int) -> None:
    shuffled = random.sample(recorded_values, len(recorded_values))
    assert format.step_root(step, shuffled) == format.step_root(step, recorded_values)


@SEEDED
@given(any_leaf, any_leaf, st.sampled_from(["phase", "name", "occurrence", "dtype", "shape", "algorithm", "digest"]))
def test_a_root_depends_on_every_field(one: RecordedValue, other: RecordedValue, field: str) -> None:
    one = one._replace(scope=Scope.LOGICAL)
    changed = one._replace(**{field: getattr(other, field)})
    assert (format.step_root(0, [one]) == format.step_root(0, [changed])) == (one == changed)
    assert format.step_root(0, [one]) != format.step_root(1, [one])


@SEEDED
@given(any_leaves)
def test_only_what_decides_is_in_a_root(recorded_values: list[RecordedValue]) -> None:
    deciding = [each for each in recorded_values if each.scope in (Scope.LOGICAL, Scope.SHARD)]
    assert format.step_root(3, recorded_values) == format.step_root(3, deciding)
    assert (format.step_root(3, []) == format.step_root(3, recorded_values)) == (not deciding)


@SEEDED
@given(st.lists(names), st.lists(names))
def test_other_fields_are_other_bytes(one: list[str], other: list[str]) -> None:
    assert (format.enc(*one) == format.enc(*other)) == (one == other)


@SEEDED
@given(st.dictionaries(names, names), st.dictionaries(names, names))
def test_a_chain_begins_with_the_identity(one: dict[str, str], other: dict[str, str]) -> None:
    assert (format.chain_start(one) == format.chain_start(other)) == (one == other)
    assert format.chain_start(one) == format.chain_start(dict(reversed(one.items())))
