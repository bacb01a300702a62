"""What a level sets before a program starts: which of a user's values stay, which are refused, and how."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.bits.levels import DETERMINISTIC, INVARIANT, MOVE_BITS, OFF, SETTINGS, level_variables
from harness.doctor.environment import LOWERED
from harness.trace.fingerprint import perturbation
from harness.trace.manifest import LEVELS
from tests.support.manual import section

SEEDED = settings(derandomize=True)
LEGAL = {
    "PYTHONHASHSEED": ("0", "42"),
    "MKL_DYNAMIC": ("false", "0"),
    "MKL_CBWR": ("AVX2", "COMPATIBLE", "AVX512,STRICT"),
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
    "NCCL_ALGO": ("Tree", "ring", "allreduce:tree"),
    "NCCL_PROTO": ("LL128",),
    "HCCL_DETERMINISTIC": ("strict",),
}
ILLEGAL = {
    "PYTHONHASHSEED": ("random", "-1"),
    "OMP_DYNAMIC": ("TRUE",),
    "MKL_CBWR": ("OFF",),
    "CUBLAS_WORKSPACE_CONFIG": (":0:0",),
    "NCCL_ALGO": ("NVLS", "Ring,Tree", "NVLSTree"),
    "NCCL_NVLS_ENABLE": ("1", "2"),
    "PYTORCH_TUNABLEOP_ENABLED": ("1",),
    "VLLM_BATCH_INVARIANT": ("0",),
}


def pairs(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(name, value) for name, values in table.items() for value in values]


def test_off_sets_nothing_whatever_is_set() -> None:
    assert level_variables(OFF, dict(pairs(ILLEGAL))) == {}


def test_what_else_would_serve_is_told() -> None:
    with pytest.raises(UsageError) as refused:
        level_variables(DETERMINISTIC, {"CUBLAS_WORKSPACE_CONFIG": "bad", "PYTHONHASHSEED": "random"})
    assert refused.value.legal == "PYTHONHASHSEED=0 or another number; CUBLAS_WORKSPACE_CONFIG=:16:8 or :4096:8"
    assert all(bool(setting.others) == bool(setting.accepts) for setting in SETTINGS)


def test_levels_are_those_of_a_trace() -> None:
    assert LEVELS == (OFF, DETERMINISTIC, INVARIANT)


@SEEDED
@given(
    st.lists(st.sampled_from(pairs(LEGAL))).map(dict), st.dictionaries(st.sampled_from(["HOME", "OTHER"]), st.text())
)
def test_what_serves_stays_and_the_rest_is_set(own: dict[str, str], others: dict[str, str]) -> None:
    level = level_variables(DETERMINISTIC, own | others)
    assert {name: level[name] for name in own} == own
    assert level.keys() == {setting.name for setting in SETTINGS}
    assert all(setting.allows(level[setting.name]) for setting in SETTINGS)
    assert level_variables(DETERMINISTIC, others | level) == level, "a child of a child is given the same"


@SEEDED
@given(
    st.lists(st.sampled_from(pairs(ILLEGAL)), min_size=1).map(dict), st.lists(st.sampled_from(pairs(LEGAL))).map(dict)
)
def test_what_excludes_the_level_is_refused_by_name(wrong: dict[str, str], right: dict[str, str]) -> None:
    right = {name: value for name, value in right.items() if name not in wrong}
    with pytest.raises(UsageError) as refused:
        level_variables(DETERMINISTIC, right | wrong)
    assert all(f"{name}={value} (" in refused.value.what for name, value in wrong.items())
    assert sorted(refused.value.remedy.split()[1:]) == sorted(wrong)
    assert not any(f"{name}=" in refused.value.what for name in right)
    mended = {name: value for name, value in (right | wrong).items() if name not in refused.value.remedy.split()}
    assert level_variables(DETERMINISTIC, mended)


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert level_variables(DETERMINISTIC, {"PYTHONHASHSEED": ""})["PYTHONHASHSEED"] == "0"


def test_what_cannot_be_held_from_outside_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="cannot be guaranteed for a program") as refused:
        level_variables(INVARIANT, {})
    assert "--level deterministic" in refused.value.remedy
    with pytest.raises(UsageError, match="'full'"):
        level_variables("full", {})


def test_an_entry_that_holds_invariant_is_given_what_settles_how_something_is_computed() -> None:
    rerun, invariant = level_variables(DETERMINISTIC, {}), level_variables(INVARIANT, {}, is_held_by_entry=True)
    free = {"PYTHONHASHSEED", "OMP_DYNAMIC", "MKL_DYNAMIC"}
    assert invariant == {name: value for name, value in rerun.items() if name not in free}
    assert level_variables(DETERMINISTIC, {}, is_held_by_entry=True) == rerun
    strict = level_variables(INVARIANT, {}, is_held_by_entry=True, is_intels=True)
    assert strict == invariant | {"MKL_CBWR": "AUTO,STRICT"}
    assert level_variables(DETERMINISTIC, {}, is_intels=True) == rerun
    chosen = level_variables(INVARIANT, {"MKL_CBWR": "auto"}, is_held_by_entry=True, is_intels=True)
    assert chosen["MKL_CBWR"] == "auto"
    told = perturbation(rerun, 1)
    assert {f"variable {name}" for name in free} == told.keys() & {f"variable {name}" for name in rerun}, (
        "what is of no matter is what the fingerprint tells as such"
    )
    assert level_variables(INVARIANT, {"PYTHONHASHSEED": "random"}, is_held_by_entry=True) == invariant
    with pytest.raises(
        UsageError, match="the level 'invariant' conflicts with variables that are set: NCCL_NVLS_ENABLE=1"
    ):
        level_variables(INVARIANT, {"NCCL_NVLS_ENABLE": "1"}, is_held_by_entry=True)


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("MKL_CBWR", "COMPATIBLE", "MKL_CBWR=AUTO or AUTO,STRICT"),
        ("MKL_CBWR", "AVX2", "MKL_CBWR=AUTO or AUTO,STRICT"),
        ("ATEN_CPU_CAPABILITY", "default", "ATEN_CPU_CAPABILITY not set"),
        ("ONEDNN_MAX_CPU_ISA", "AVX2", "ONEDNN_MAX_CPU_ISA not set"),
    ],
)
def test_what_moves_bits_and_repeats_them_is_legal_at_deterministic_alone(name: str, value: str, legal: str) -> None:
    assert level_variables(DETERMINISTIC, {name: value})
    with pytest.raises(UsageError, match=f"{name}={value}") as refused:
        level_variables(INVARIANT, {name: value}, is_held_by_entry=True)
    assert (refused.value.legal, refused.value.remedy) == (legal, f"unset {name}")


def test_every_variable_of_a_level_is_part_of_the_fingerprint() -> None:
    names = [setting.name for setting in SETTINGS]
    assert set(names) <= MOVE_BITS
    assert len(names) == len(set(names))
    assert all(setting.allows(setting.value) and setting.reason for setting in SETTINGS)


def test_the_manual_has_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (.+) \|$", section("Levels"), re.MULTILINE)
    assert rows == [(setting.name, setting.value, setting.reason) for setting in SETTINGS]


def test_no_level_sets_what_the_doctor_warns_of() -> None:
    warned = {s.name for s in SETTINGS if s.value.upper() in LOWERED.get(s.name, ("",))[0].split()}
    assert warned == set()
