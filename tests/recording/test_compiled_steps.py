"""Programs that compile the step of their optimizer: recording changes no bit of them, and never claims too much."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from harness.trace import read_trace
from harness.trace.format import Scope
from harness.trace.ops import read_ops
from tests.support.recorded_programs import Ran, compared, program, record, run
from tests.support.verified import verify

NUM_STEPS = 10
needs_cpp = pytest.mark.skipif(
    not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))), reason="inductor needs g++ or clang++"
)


def record_beside_plain(
    tmp_path: Path, kind: str, *options: str, name: str = "compiled_step", backend: str = "eager", exit_code: int = 0
) -> Ran:
    """Run a program twice, recorded and not; AssertionError where a bit of its weights differs."""
    weights = [tmp_path / "plain.pt", tmp_path / "recorded.pt"]
    arguments = [*filter(None, [kind]), "--backend", backend, "--weights"]
    commands = [program(name, *arguments, str(each)) for each in weights]
    caches = [{"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)} for name in ("cache_of_plain", "cache_of_recorded")]
    with ThreadPoolExecutor() as pool:
        recorded = pool.submit(record, tmp_path / "a", commands[1], *options, env=caches[1], exit_code=exit_code)
        plain = run(*commands[0], env=caches[0])
        done = recorded.result()
    assert plain.exit_code == 0, plain.errors
    one, other = (torch.load(each) for each in weights)
    assert all(torch.equal(one[key], other[key]) for key in one)
    return done


@pytest.mark.full
def test_no_way_of_compiling_a_training_has_other_bits_when_it_is_recorded(tmp_path: Path) -> None:
    """Ten ways that are recorded, then three in which no hook is called, and that is reported."""
    done = record_beside_plain(tmp_path, "", name="compiled_variants", backend="aot_eager", exit_code=12)
    assert done.errors.count("torch.compile has compiled the optimizer's step") == 2, "when it happens, and at the end"
    trace = read_trace(tmp_path / "a")
    assert (len(trace.steps), trace.gaps) == (10 * 3, ("rank-0.log was not closed",))
    for step in trace.steps:
        values = trace.ranks[0].columns(step).values()
        assert len([each for each in values if each.phase == "backward" and each.scope is Scope.LOGICAL]) == 4
        assert [each.name for each in values if each.name.endswith("group0.lr")]


@pytest.mark.full
def test_a_step_that_is_compiled_whole_is_said_to_be_missing(tmp_path: Path) -> None:
    """AdamW steps first, which can be recorded; the other optimizer steps in one graph, and must go on to."""
    done = record_beside_plain(tmp_path, "both", exit_code=12)
    said = [line for line in done.errors.splitlines() if "recording ended" in line]
    assert said == [
        "rlharness: recording ended, the program continues: torch.compile has compiled the optimizer's step, and"
        " nothing within compiled code can be recorded: call step() outside the compiled function"
    ]
    trace = read_trace(tmp_path / "a")
    assert (len(trace.steps), trace.gaps) == (1, ("rank-0.log was not closed",))


@pytest.mark.full
@pytest.mark.parametrize(
    ("op_step", "said"),
    [(0, ""), (1, "the step begins within a function that torch.compile has compiled")],
)
def test_operations_beside_a_compiled_step_change_no_bit(op_step: int, said: str, tmp_path: Path) -> None:
    done = record_beside_plain(tmp_path, "function", "--trace-ops", str(op_step))
    assert len(read_trace(tmp_path / "a").steps) == NUM_STEPS
    found = read_ops(tmp_path / "a", 0, op_step)
    assert found is not None
    assert found.problem == said
    assert said in done.errors
    phases = {operation.phase for operation in found.operations}
    assert phases == ({"forward", "backward", "optimizer"} if op_step == 0 else set())


@pytest.mark.full
@needs_cpp
def test_a_cache_of_compiled_code_carries_nothing_from_a_recorded_run_to_another(tmp_path: Path) -> None:
    """Recorded, plain and recorded again, all in one cache on disk: no bit is changed, and each step is recorded."""
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    weights = [tmp_path / f"{index}.pt" for index in range(3)]
    commands = [
        program("compiled_step", "function", "--backend", "inductor", "--weights", str(each)) for each in weights
    ]
    record(tmp_path / "a", commands[0], env=env)
    assert run(*commands[1], env=env).exit_code == 0
    record(tmp_path / "b", commands[2], env=env)
    first, *others = (torch.load(each) for each in weights)
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)
    verdict = compared(tmp_path / "a", tmp_path / "b")
    # The commands differ in where they save; their bits do not.
    assert (verdict["num_steps"], verdict["num_steps_different"], verdict["first"]) == (NUM_STEPS, 0, None)
    trace = read_trace(tmp_path / "b")
    assert (trace.gaps, verify(trace), len(trace.steps)) == ((), [], NUM_STEPS)
    for step in trace.steps:
        values = trace.ranks[0].columns(step).values()
        received = {each.name for each in values if each.phase == "backward" and each.scope is Scope.LOGICAL}
        assert received == {"0.weight", "0.bias"}
        made = {each.name for each in values if each.phase == "optimizer"}
        assert made >= {"0.weight", "0.weight exp_avg", "0.bias exp_avg_sq", "AdamW.group0.lr"}
