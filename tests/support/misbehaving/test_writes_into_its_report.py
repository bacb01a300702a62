"""Writes into the report that tells the runner about it, whole lines of nonsense and a torn one: PASSED."""

import pytest

NONSENSE = (
    b'["start"]\n{"k":"start","timeout_s":"soon"}\n{"k":"end","id":7}\n\xff\0{"k":"start"\n[' + b"[" * 5000 + b"\n"
)


def test_writes(request: pytest.FixtureRequest) -> None:
    report = request.config.getoption("--rlharness-report", default=None)
    if report is None:
        pytest.skip("not run by rlharness: there is no report")
    with open(report, "ab", buffering=0) as file:
        file.write(NONSENSE)


def test_passes() -> None:
    pass
