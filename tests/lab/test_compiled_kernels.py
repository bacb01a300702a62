"""The engine's compiled kernels as they are typed: processes agree, operations are told, what is none is refused."""

from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from harness.trace import read_trace
from harness.trace.ops import read_ops
from tests.support.cli_commands import type_command

pytest.importorskip("torch")
pytestmark = [pytest.mark.timeout(240), pytest.mark.needs_compiler, pytest.mark.full]
SMALL = ("grpo_reverse_text", "--size", "tiny", "--set", "training.num_steps=2")
OPERATIONS = {
    "forward": {"rms_norm", "linear", "swiglu", "attend", "attend_cached", "uniforms"},
    "backward": {"rms_norm_backward", "linear_backward", "swiglu_backward", "attend_backward"},
}


def test_processes_agree_and_a_record_of_operations_has_the_kernels_and_moves_no_bit(tmp_path: Path) -> None:
    compiled = (*SMALL, "--set", "model.kernels=compiled")
    replayed = type_command(tmp_path, "replay", *compiled, "--step", "1", "--trace-ops", "--out", "r")
    assert replayed.code == ExitCode.OK, replayed.stdout + replayed.stderr
    assert replayed.stdout.startswith("A: run 1  B: run 2\nEQUAL  2 steps, every recorded bit\n")
    assert "none differs\n    valid: this recording did not change step 1\n" in replayed.stdout
    found = read_ops(tmp_path / "r" / "run-1-op", 0, 1)
    assert found is not None
    of_kernels = [each for each in found.operations if each.name.startswith("rlcore.")]
    for phase, names in OPERATIONS.items():
        assert {each.name for each in of_kernels if each.phase == phase} >= {f"rlcore.{name}.default" for name in names}
    asked = {each.name: each.at.rpartition(":")[0] for each in of_kernels}
    assert asked.pop("rlcore.uniforms.default").endswith("samplers/gumbel.py"), "the line that asked for it"
    assert all(at.endswith("compiled/differentiable.py") for at in asked.values()), asked
    assert not any(name.startswith("rlcore.layer") for name in asked), "layers are told by their parts"

    trained = type_command(tmp_path, "train", *compiled, "--out", "t")
    assert trained.code == ExitCode.OK, trained.stderr
    diff = type_command(tmp_path, "diff", "t", "r/run-2")
    assert (diff.code, "EQUAL  2 steps, every recorded bit" in diff.stdout) == (ExitCode.OK, True), diff.stdout
    manifest = read_trace(tmp_path / "t").manifest
    assert manifest is not None
    assert manifest.fingerprint.identity["model.kernels"] == '"compiled"'
    libraries = [name for name in manifest.fingerprint.numerics if name.startswith("library kernels-")]
    assert len(libraries) == 1, "what computes is told with what it was built from"


def test_kernels_that_there_are_none_of_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = type_command(tmp_path, "train", *SMALL, "--set", "model.kernels=fast", "--out", "t")
    assert done.code == ExitCode.USAGE_ERROR
    assert done.stderr == "error: model.kernels is 'fast'\n  legal:  'torch' or 'compiled'\n"
    assert not (tmp_path / "t").exists()
