"""What a bundle may hold, and what its head says."""

import json
from contextlib import suppress
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import BundleError
from harness.lab.experiments.bundle import Head, Member, NamedCheckpoint, check_call, is_legal_name, parse_head
from tests.support.traces import SEEDED

LEGAL = (
    *("call.json", "manifest.json", "curve.jsonl", "rank-0.log", "rank-12.log"),
    *("tensors/rank-0-step-7.safetensors", "unfinished/manifest.json", "unfinished/rank-0.log"),
    *("unfinished/tensors/rank-0-step-7.safetensors", "checkpoints/step-000005/values.json"),
    "checkpoints/step-000005/policy/model-00001-of-00002.safetensors",
    "checkpoints/step-000005/policy/model.safetensors.index.json",
    *(f"checkpoints/step-000005/policy/{name}" for name in ("merges.txt", "tokenizer.model", "chat_template.jinja")),
)
ILLEGAL = (
    *("", ".", "..", "/", "/etc/passwd", "../call.json", "a.py", "call.json/", "call.json\n", "CALL.JSON"),
    *("tensors/../call.json", "tensors/rank-0-step-7.pt", "checkpoints/step-000005", "checkpoints/step-5/a"),
    *("checkpoints/step-000005/../../../a", "checkpoints/step-000005/.hidden", "checkpoints/step-000005//a"),
    *("checkpoints\\step-000005\\a", "unfinished/unfinished/manifest.json", "unfinished/call.json"),
    *("C:call.json", "checkpoints/step-000005/a/b/c/d/e", "checkpoints/step-00000\u0665/a", "run.json", "bundle.json"),
    *(f"checkpoints/step-000005/{name}" for name in ("evil.py", "a/evil.pyc", "evil.so", "evil.pth", "state.pt")),
    *(f"checkpoints/step-000005/{name}" for name in ("state.pkl", "weights", "a.json/b", "json", "a.json.py")),
)
DIGEST = "0123456789abcdef" * 2
heads = st.builds(
    Head,
    step=st.integers(0, 2**53),
    start=st.none() | st.integers(0, 2**53),
    members=st.dictionaries(st.sampled_from(LEGAL), st.builds(Member, st.integers(0, 2**60), st.just(DIGEST))),
    checkpoint=st.none()
    | st.builds(
        NamedCheckpoint, st.text(max_size=8).filter(str.isprintable).map("{}/step-000012".format), st.just(DIGEST)
    ),
    written_by=st.text(max_size=8),
)


def test_members_have_names_from_a_closed_list() -> None:
    assert [name for name in LEGAL if not is_legal_name(name)] == []
    assert [name for name in ILLEGAL if is_legal_name(name)] == []


@SEEDED
@given(heads)
def test_a_head_is_read_as_it_was_written(head: Head) -> None:
    assert parse_head(head.encoded()) == head


@pytest.mark.full
@SEEDED
@given(heads, st.data())
def test_a_head_that_was_changed_is_refused_or_says_something_else(head: Head, data: st.DataObject) -> None:
    text = bytearray(head.encoded())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(BundleError):
        assert parse_head(bytes(text)) != head


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"format": 1}',
        Head(1, None, {}).encoded().replace(b'"step": 1', b'"step": true'),
        Head(1, None, {}).encoded().replace(b'"step": 1', b'"step": -1'),
        Head(1, None, {}).encoded().replace(b'"members": {}', b'"members": {"../a": {"num_bytes": 1}}'),
        Head(1, None, {}).encoded().replace(b"\n", b" "),
        Head(1, None, {}, NamedCheckpoint("/", DIGEST)).encoded(),
        Head(1, None, {}, NamedCheckpoint("/step-000012/..", DIGEST)).encoded(),
        Head(1, None, {}, NamedCheckpoint("/x\x1b]0;P\x07\nerror: fine\n/step-000001", DIGEST)).encoded(),
    ],
)
def test_what_is_no_head_is_refused(text: bytes) -> None:
    with pytest.raises(BundleError):
        parse_head(text)


def test_a_newer_format_is_refused_by_name() -> None:
    text = Head(1, None, {}, written_by="rlharness 9.1").encoded().replace(b'"format": 1', b'"format": 2')
    with pytest.raises(BundleError, match="format 2") as refused:
        parse_head(text)
    assert refused.value.remedy == "pip install 'rlharness>=9.1'"
    with pytest.raises(BundleError, match="format 2") as refused:
        parse_head(text.replace(b"9.1", b"9.1' --index-url https://evil.example 'x"))
    assert refused.value.remedy == "pip install --upgrade rlharness"


CALL = {"entry": "a.b:c", "config": {"seed": 1}, "runtime_sections": ["output"], "resume": {"run": "a", "step": "b"}}


@pytest.mark.parametrize(
    "change",
    [
        {"entry": "a b:c"},
        {"entry": "os:system('x')"},
        {"config": []},
        {"runtime_sections": "output"},
        {"resume": {"run": "a"}},
        {"resume": {"run": "a", "step": 1}},
        {"more": 1},
    ],
)
def test_a_call_is_checked_before_it_counts(change: dict[str, object]) -> None:
    assert asdict(check_call(json.dumps(CALL).encode())) == {**CALL, "runtime_sections": ("output",)}
    with pytest.raises(BundleError):
        check_call(json.dumps({**CALL, **change}).encode())
    with pytest.raises(BundleError):
        check_call(b"[" * 100_000)
