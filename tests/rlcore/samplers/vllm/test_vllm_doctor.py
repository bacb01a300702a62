"""The doctor reads vLLM's own table of variables from its source, as vLLM has it after an import."""

import os
from pathlib import Path

import pytest

from harness.doctor.vllm_setup import read_setup, read_variables
from tests.support.vllm_engines import need_vllm

need_vllm()


def test_the_variables_read_from_the_source_are_those_that_vllm_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.envs

    table = vllm.envs.environment_variables
    known, integers = read_variables(Path(vllm.envs.__file__))
    assert known == {name for name in table if name.startswith("VLLM_")}
    assert read_setup().variables == known
    for name in integers:
        monkeypatch.setitem(os.environ, name, "yes")
        with pytest.raises(ValueError, match="invalid literal"):
            table[name]()
        monkeypatch.delitem(os.environ, name)
