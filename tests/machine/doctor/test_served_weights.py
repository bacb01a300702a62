"""Distances of a server from a checkpoint, as a finding: the right weights, others, stale caches, and no answer."""

import json
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.core.findings import Finding, Severity
from harness.doctor.host import Answer
from harness.doctor.served_weights import ServedWeights, compare_served_weights
from tests.support.finding_checks import sound

ASKED = ServedWeights("ckpt", "http://h:8000")
RIGHT = {"model": "m", "num_tokens": 652, "prompt": 5e-7, "decoded": 4e-7, "rounding": 0.01}
RIGHT |= {"shuffled": {"layer 0": 0.7, "layer 1": 0.6}}


def found(**changes: Any) -> Finding:
    (finding,) = sound([compare_served_weights(ASKED, Answer("a warning\n" + json.dumps(RIGHT | changes)))])
    return finding


def test_the_right_weights_are_fine_and_the_scale_is_given() -> None:
    finding = found()
    assert (finding.check, finding.severity) == ("weights", Severity.FINE)
    assert finding.measured == (
        "m at http://h:8000 is 5e-07 nats a token from ckpt over 652 tokens; "
        "float32 explains 0.0001, one shuffled layer would make 0.6 (layer 1)"
    )
    assert "bfloat16 explains 0.04" in found(prompt=0.02, decoded=0.03).measured


@pytest.mark.parametrize("prompt", [0.041, 1.1, float("nan"), None])
def test_other_weights_are_broken(prompt: float | None) -> None:
    finding = found(prompt=prompt, decoded=prompt)
    assert finding.severity is Severity.BROKEN
    assert "other weights" in finding.breaks


@pytest.mark.parametrize("decoded", [2.4, 2e-4, float("nan")])
def test_keys_of_older_weights_are_broken(decoded: float) -> None:
    finding = found(decoded=decoded)
    assert (finding.severity, "prefix cache" in finding.breaks) == (Severity.BROKEN, True)
    assert "/reset_prefix_cache" in finding.remedy


def test_a_check_that_could_not_see_a_wrong_layer_warns() -> None:
    finding = found(prompt=0.02, decoded=0.02, shuffled={"layer 0": 0.07})
    assert finding.severity is Severity.WARNING
    assert "cannot be distinguished" in finding.measured
    assert found(shuffled={"layer 0": 0.07}).severity is Severity.FINE, "float32 distinguishes them"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (Answer(json.dumps({"what": "no server", "legal": "one", "remedy": "start it"})), "no server"),
        (Answer("ModuleNotFoundError: No module named 'torch'\n", 1), "No module named 'torch'"),
        (Answer("", None, "no answer within 1800 s"), "no answer within 1800 s"),
        (Answer("", 0), "exit code 0"),
    ],
)
def test_what_cannot_be_asked_is_an_error(answer: Answer, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        compare_served_weights(ASKED, answer)
    assert caught.value.remedy
