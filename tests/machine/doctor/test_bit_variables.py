"""Which variables move bits, and which of their values are worth a warning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.levels import MOVE_BITS
from harness.doctor.bit_variables import LOWERED, check_bit_variables, check_hash_seed
from harness.machine.findings import Severity
from tests.support.finding_checks import severities, sound

VALUES = st.sampled_from(["0", "1", "2", "TRUE", "any", "bf16", ":4096:8", ":8:8", "4,2", "x", "", " "])


def test_an_empty_environment_is_fine() -> None:
    assert severities(check_bit_variables({})) == {"bits": "fine"}
    (finding,) = check_bit_variables({"HOME": "/home/a", "LD_PRELOAD": "x"})
    assert finding.measured == "no variable that moves the bits of a run is set"


def test_what_is_set_is_told_without_an_alarm() -> None:
    environ = {"OMP_NUM_THREADS": "4,2", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVIDIA_TF32_OVERRIDE": "0"}
    (finding,) = sound(check_bit_variables(environ))
    assert finding.measured.endswith("CUBLAS_WORKSPACE_CONFIG=:4096:8 NVIDIA_TF32_OVERRIDE=0 OMP_NUM_THREADS=4,2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVIDIA_TF32_OVERRIDE", "1"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "bf16"),
        ("OMP_DYNAMIC", "true"),
        ("CUBLAS_WORKSPACE_CONFIG", ":8:8"),
        ("OMP_NUM_THREADS", "0"),
        ("OMP_NUM_THREADS", "4,"),
        ("MKL_NUM_THREADS", "4,2"),
    ],
)
def test_what_costs_bits_is_a_warning(name: str, value: str) -> None:
    assert severities(check_bit_variables({name: value})) == {name: "warning", "bits": "fine"}


@given(st.dictionaries(st.sampled_from(sorted(MOVE_BITS)), VALUES))
def test_what_is_recommended_ends_the_warnings_and_everything_is_told(environ: dict[str, str]) -> None:
    findings = sound(check_bit_variables(environ))
    told = " ".join(finding.measured for finding in findings)
    assert all(name in told for name in environ if name != "PYTHONHASHSEED")
    gone = {name for finding in findings for name in finding.unsets}
    mended = {name: value for name, value in environ.items() if name not in gone}
    mended |= dict(pair for finding in findings for pair in finding.exports)
    assert {finding.severity for finding in check_bit_variables(mended)} == {Severity.FINE}


def test_every_variable_that_lowers_accuracy_moves_bits() -> None:
    assert set(LOWERED) <= MOVE_BITS


@pytest.mark.parametrize("environ", [{}, {"PYTHONHASHSEED": "random"}, {"PYTHONHASHSEED": ""}])
def test_a_random_hash_seed_is_said_and_no_alarm(environ: dict[str, str]) -> None:
    (finding,) = sound([check_hash_seed(environ)])
    assert "set order differs between processes" in finding.measured


def test_a_fixed_hash_seed() -> None:
    assert check_hash_seed({"PYTHONHASHSEED": "7"}).measured == "7: sets have the same order in every process"
