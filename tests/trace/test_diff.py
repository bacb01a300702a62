"""Verdicts: a single bit is found wherever it is, and nothing that does not count is taken for a divergence."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128_hexdigest

from harness.bits.digests import SHARDSUM_128
from harness.trace.diff import StepDifference, compare_values, diff
from harness.trace.format import HEADER, RecordedValue, Scope, done_payload, frame, step_payload
from harness.trace.manifest import MAX_FIELD_CHARS
from harness.trace.reader import read_trace
from harness.trace.verdict import Difference, Kind, VerdictCode
from tests.support.traces import (
    SEEDED,
    VALUES,
    any_leaves,
    flip_bit,
    manifest_of,
    recorded_value,
    scalar,
    steps_of,
    trace,
    write,
)

# ------------------------------------------------------------------------------------------------- one rank, one bit


@settings(SEEDED, max_examples=25)
@given(st.integers(0, 9), st.integers(0, len(VALUES) - 1), st.booleans())
def test_a_single_bit_is_named_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, step: int, index: int, is_swapped: bool
) -> None:
    directory = tmp_path_factory.mktemp("diff")
    phase, name = VALUES[index]
    a = trace(directory / "a", steps_of(10))
    b = trace(directory / "b", steps_of(10, flip_bit(step, phase, name)))
    verdict = diff(b, a) if is_swapped else diff(a, b)
    first = verdict.first
    assert verdict.kind is Kind.DIVERGED
    assert first is not None
    assert first.a is not None
    assert (first.step, first.what, first.rank) == (step, Difference.VALUE, 0)
    assert (first.a.phase, first.a.name, first.num_different, first.num_values) == (phase, name, 1, len(VALUES))
    before = (first.last_equal.phase, first.last_equal.name) if first.last_equal else None
    assert before == (VALUES[index - 1] if index else None)
    assert verdict.num_steps_different == 10 - step


def test_the_order_of_recording_does_not_count(tmp_path: Path) -> None:
    backwards = [list(reversed(recorded_values)) for recorded_values in steps_of(3)]
    assert diff(trace(tmp_path / "a", steps_of(3)), trace(tmp_path / "b", backwards)).kind is Kind.EQUAL


@pytest.mark.parametrize(("bits", "is_payload_only"), [(0x7FC00001, True), (0xFFC00000, True), (0x7F800000, False)])
def test_nan_payloads_are_a_class_of_their_own_and_diverge(tmp_path: Path, bits: int, is_payload_only: bool) -> None:
    a = trace(tmp_path / "a", [[scalar("loss", "loss", 0x7FC00000)]] * 2)
    b = trace(tmp_path / "b", [[scalar("loss", "loss", bits)]] * 2)
    verdict = diff(a, b)
    assert (verdict.kind, verdict.is_nan_payload_only) == (Kind.DIVERGED, is_payload_only)
    later = trace(tmp_path / "c", [[scalar("loss", "loss", 0x7FC00001)], [scalar("loss", "loss", 1)]])
    assert not diff(a, later).is_nan_payload_only, "the second step differs in more than a payload"


# --------------------------------------------------------------------------------------------------- other structure


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda each: each._replace(dtype="bf16"), Difference.DTYPE),
        (lambda each: each._replace(shape=(32, 64)), Difference.SHAPE),
        (lambda each: None, Difference.VALUE_ONLY_IN_A),
    ],
)
def test_other_leaves_are_divergences(
    tmp_path: Path, change: Callable[[RecordedValue], RecordedValue | None], what: Difference
) -> None:
    def at_step_1(step: int, each: RecordedValue) -> RecordedValue | None:
        return change(each) if (step, each.name) == (1, "layers.1.weight") else each

    a, b = trace(tmp_path / "a", steps_of(3)), trace(tmp_path / "b", steps_of(3, at_step_1))
    for verdict, expected in ((diff(a, b), what), (diff(b, a), mirrored(what))):
        assert verdict.kind is Kind.DIVERGED
        assert verdict.first is not None
        assert (verdict.first.step, verdict.first.what) == (1, expected)
        assert verdict.first.last_equal is not None
        assert verdict.first.last_equal.name == "layers.0.weight"


def mirrored(what: Difference) -> Difference:
    pairs = {
        Difference.VALUE_ONLY_IN_A: Difference.VALUE_ONLY_IN_B,
        Difference.STEP_ONLY_IN_A: Difference.STEP_ONLY_IN_B,
    }
    return pairs.get(what, what)


@pytest.mark.full
@SEEDED
@given(any_leaves, any_leaves)
def test_leaves_are_alike_exactly_if_nothing_differs(a: list[RecordedValue], b: list[RecordedValue]) -> None:
    found, back = compare_values(a, b), compare_values(b, a)
    assert compare_values(a, a) == StepDifference(None, None, 0, len(a), 0, 0, False)
    counted = (found.num_different, found.num_incomparable)
    assert counted == (back.num_different, back.num_incomparable)
    same = {(each.scope, each.key): each for each in a} == {(each.scope, each.key): each for each in b}
    assert (counted == (0, 0)) == same
    assert (found.first is None) == (found.num_different == 0)


# --------------------------------------------------------------------------------- incomplete, and not to be compared


def test_as_far_as_an_incomplete_trace_goes(tmp_path: Path) -> None:
    whole = trace(tmp_path / "a", steps_of(4))
    cut = trace(tmp_path / "b", steps_of(2), complete=False)
    verdict = diff(whole, cut)
    assert (verdict.kind, verdict.num_steps, verdict.first) == (Kind.INCOMPLETE, 2, None)
    assert verdict.reasons == (
        VerdictCode.TRACE_INCOMPLETE(trace="B", message="its program did not exit normally"),
        VerdictCode.TRACE_INCOMPLETE(trace="B", message="rank-0.log was not closed"),
    )
    other = trace(tmp_path / "c", steps_of(2, flip_bit(1, "loss", "loss")), complete=False)
    assert diff(whole, other).kind is Kind.DIVERGED


def test_two_traces_of_nothing_prove_nothing(tmp_path: Path) -> None:
    verdict = diff(trace(tmp_path / "a", []), trace(tmp_path / "b", []))
    assert (verdict.kind, verdict.reasons) == (Kind.INCOMPLETE, (VerdictCode.NO_STEP(),))


def test_steps_without_a_value_that_counts_prove_nothing(tmp_path: Path) -> None:
    """An entry that records its curve alone, say; or values that explain, and do not decide."""
    explaining = recorded_value("rollout", "random.torch", 1, scope=Scope.CONTEXT)
    for name, steps in (("none", [[], []]), ("context", [[explaining]])):
        verdict = diff(trace(tmp_path / name / "a", steps), trace(tmp_path / name / "b", steps))
        assert (verdict.kind, verdict.reasons) == (Kind.INCOMPLETE, (VerdictCode.NO_VALUE(),)), name


def test_another_identity_is_not_comparable_and_still_shown(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(2))
    same = trace(tmp_path / "b", steps_of(2), manifest_of(identity={"seed": "8"}))
    verdict = diff(a, same)
    reasons = (VerdictCode.IDENTITY_DIFFERS(names=("seed",)),)
    assert (verdict.kind, verdict.reasons, verdict.first) == (Kind.NOT_COMPARABLE, reasons, None)
    other = trace(tmp_path / "c", steps_of(2, flip_bit(1, "loss", "loss")), manifest_of(identity={"seed": "8"}))
    verdict = diff(a, other)
    assert verdict.kind is Kind.NOT_COMPARABLE
    assert verdict.first is not None
    assert verdict.first.step == 1


@pytest.mark.parametrize(
    ("part", "code"), [("numerics", VerdictCode.NUMERICS_DIFFER), ("content", VerdictCode.CONTENT_DIFFERS)]
)
def test_other_numerics_or_content_excuse_a_difference_and_equal_bits_need_no_excuse(
    part: str, code: VerdictCode, tmp_path: Path
) -> None:
    a = trace(tmp_path / "a", steps_of(2), manifest_of(**{part: {"it": "1"}}))
    b = trace(tmp_path / "b", steps_of(2), manifest_of(**{part: {"it": "2"}}))
    c = trace(tmp_path / "c", steps_of(2, flip_bit(1, "loss", "loss")), manifest_of(**{part: {"it": "2"}}))
    assert (diff(a, b).kind, list(diff(a, b).fingerprints)) == (Kind.EQUAL, [part])
    verdict = diff(a, c)
    assert (verdict.kind, verdict.reasons) == (Kind.NOT_COMPARABLE, (code(names=("it",)),))
    assert verdict.first is not None


def test_content_that_one_run_did_not_record_is_no_difference(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(2), manifest_of(content={"prompts": "1"}))
    b = trace(tmp_path / "b", steps_of(2, flip_bit(1, "loss", "loss")), manifest_of())
    assert (diff(a, b).kind, diff(a, b).fingerprints) == (Kind.DIVERGED, {})


@pytest.mark.full
@pytest.mark.parametrize(
    ("library", "decides"),
    [
        *[
            (name, False)
            for name in (
                *("libnss_mdns4_minimal.so.2", "libnss_sss.so.2", "libresolv.so.2", "libnss3.so", "libsystemd.so.0"),
                *("libpam.so.0.85.1", "pam_unix.so", "libgssapi_krb5.so.2", "libssl.so.3", "libcrypto-1d9c2f0a.so.3"),
                *("ISO8859-1.so", "UTF-16.so", "CP1252.so", "EUC-JP.so", "libidn2.so.0", "libreadline.so.8.2"),
                *("unicodedata.cpython-311-x86_64-linux-gnu.so", "_ssl.cpython-312-aarch64-linux-gnu.so"),
            )
        ],
        *[
            (name, True)
            for name in (
                *("libmkl_core.so.2", "libscipy_openblas64_-32a4b2a6.so", "libtorch_cpu.so", "libgomp.so.1"),
                *("libm.so.6", "libc.so.6", "libintlc.so.5", "libsvml.so", "kernels-5e1f.so", "libcryptomath.so"),
                *("libcap_kernels.so", "ISOMAP.so", "MACE.so", "CP2K.so", "GBM.so", "libcurling.so", "libpamper.so.1"),
                *("math.cpython-311-x86_64-linux-gnu.so", "_ssl_loss.cpython-311-x86_64-linux-gnu.so"),
            )
        ],
    ],
)
def test_a_library_that_cannot_compute_is_no_excuse(library: str, decides: bool, tmp_path: Path) -> None:
    """One run has looked up a host name, and mapped what the machine looks it up with."""
    numerics = {"python": "3.11", "library libm.so.6": "d6"}
    a = trace(tmp_path / "a", steps_of(2), manifest_of(numerics=numerics))
    changed = steps_of(2, flip_bit(1, "loss", "loss"))
    b = trace(tmp_path / "b", changed, manifest_of(numerics=numerics | {f"library {library}": "d7"}))
    reasons = (VerdictCode.NUMERICS_DIFFER(names=(f"library {library}",)),)
    verdict = diff(b, a)
    assert (verdict.kind, verdict.reasons) == ((Kind.NOT_COMPARABLE, reasons) if decides else (Kind.DIVERGED, ()))


@pytest.mark.parametrize("part", ["subject", "perturbation"])
def test_other_code_and_other_threads_are_no_excuse(tmp_path: Path, part: str) -> None:
    a = trace(tmp_path / "a", steps_of(2), manifest_of(**{part: {"x": "1"}}))
    b = trace(tmp_path / "b", steps_of(2, flip_bit(1, "loss", "loss")), manifest_of(**{part: {"x": "2"}}))
    verdict = diff(a, b)
    assert (verdict.kind, list(verdict.fingerprints)) == (Kind.DIVERGED, [part])


def test_digests_of_different_algorithms_are_never_compared(tmp_path: Path) -> None:
    def other_algorithm(step: int, each: RecordedValue) -> RecordedValue:
        each = each._replace(algorithm=SHARDSUM_128, digest=bytes(16)) if each.phase == "backward" else each
        return flip_bit(1, "optimizer", "layers.0.weight")(step, each) if flips and step == 1 else each

    a = trace(tmp_path / "a", steps_of(3))
    flips = False
    verdict = diff(a, trace(tmp_path / "b", steps_of(3, other_algorithm)))
    assert verdict.kind is Kind.NOT_COMPARABLE
    assert verdict.reasons == (VerdictCode.DIGESTS_INCOMPARABLE(num_values=6),)
    assert (verdict.first, verdict.num_steps_different) == (None, 0)
    flips = True
    verdict = diff(a, trace(tmp_path / "c", steps_of(3, other_algorithm)))
    assert (verdict.kind, verdict.num_steps_different) == (Kind.DIVERGED, 1)
    assert verdict.first is not None
    assert verdict.first.last_equal is not None
    assert (verdict.first.step, verdict.first.last_equal.name) == (1, "loss")


def test_without_a_manifest_nothing_is_claimed(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", steps_of(2)), write(tmp_path / "b", steps_of(2, flip_bit(1, "loss", "loss")))
    (b / "manifest.json").unlink()
    verdict = diff(read_trace(a), read_trace(b))
    assert (verdict.kind, verdict.reasons) == (Kind.NOT_COMPARABLE, (VerdictCode.IDENTITY_UNKNOWN(trace="B"),))
    (a / "manifest.json").unlink()
    assert diff(read_trace(a), read_trace(a)).kind is Kind.INCOMPLETE


def test_a_root_that_is_not_that_of_its_leaves_is_no_divergence(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(1))
    (tmp_path / "b").mkdir()
    head = a.ranks[0].heads[0]
    wrong = step_payload(0, bytes(16), head.chain, steps_of(1)[0])
    (tmp_path / "b" / "rank-0.log").write_bytes(HEADER + frame(wrong) + frame(done_payload(1)))
    (tmp_path / "b" / "manifest.json").write_text((tmp_path / "a" / "manifest.json").read_text())
    verdict = diff(a, read_trace(tmp_path / "b"))
    assert (verdict.kind, verdict.first) == (Kind.NOT_COMPARABLE, None)
    assert verdict.reasons == (
        VerdictCode.CHAIN_BROKEN(trace="B", rank=0, step=0),
        VerdictCode.ROOT_MISMATCH(step=0),
    )


def test_long_values_of_a_fingerprint_are_shown_by_length_and_digest(tmp_path: Path) -> None:
    texts = [side + 'password="' * MAX_FIELD_CHARS for side in "ab"]
    one, other = (trace(tmp_path / text[0], steps_of(1), manifest_of(subject={"commit": text})) for text in texts)
    (found,) = diff(one, other).fingerprints["subject"]
    shown = [f"{len(text):,} characters, xxh3_128 {xxh3_128_hexdigest(text.encode())}" for text in texts]
    assert [found.a, found.b] == shown
    short, long = "c" * MAX_FIELD_CHARS, "d" * (MAX_FIELD_CHARS + 1)
    pair = (trace(tmp_path / text[0], steps_of(1), manifest_of(subject={"commit": text})) for text in (short, long))
    (found,) = diff(*pair).fingerprints["subject"]
    assert found.a == short
    assert str(found.b).startswith("32,769 characters")
