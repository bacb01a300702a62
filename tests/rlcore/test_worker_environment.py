"""A process of a run gets the controller's values of variables, or the level's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.bits.levels import MOVE_BITS, level_variables
from rlcore.determinism import worker_environment
from rlcore.errors import InvalidValueError, LevelError

VALUES = st.sampled_from(["", "0", "1", "FALSE", "true", "Ring", "AUTO", ":16:8", "off", "random"])


@given(st.sampled_from(["deterministic", "invariant"]), st.dictionaries(st.sampled_from(sorted(MOVE_BITS)), VALUES))
def test_a_worker_gets_what_the_harness_would_set_and_the_controllers_variables(
    level: str, environ: dict[str, str]
) -> None:
    try:
        wanted = level_variables(level, environ, is_held_by_entry=True)
    except UsageError:
        with pytest.raises(LevelError):
            worker_environment(level, environ)
        return
    assert worker_environment(level, environ) == wanted | {name: value for name, value in environ.items() if value}


def test_a_conflict_names_the_value_what_is_legal_and_the_remedy() -> None:
    with pytest.raises(LevelError) as caught:
        worker_environment("invariant", {"NCCL_ALGO": "CollnetDirect", "PYTHONHASHSEED": "random"})
    assert (caught.value.what, caught.value.legal, caught.value.remedy) == (
        "the level 'invariant' conflicts with variables that are set: NCCL_ALGO=CollnetDirect (one order of reduction)",
        "NCCL_ALGO=Ring or Tree",
        "unset NCCL_ALGO",
    )


def test_level_off_sets_nothing_and_passes_the_controllers_variables() -> None:
    assert worker_environment("off", {"NCCL_ALGO": "CollnetDirect", "HOME": "/"}) == {"NCCL_ALGO": "CollnetDirect"}
    with pytest.raises(InvalidValueError, match="the level 'on'"):
        worker_environment("on", {})
