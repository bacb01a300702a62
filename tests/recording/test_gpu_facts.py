"""The GPUs of a program are told once it has initialised CUDA, and asking for them initialises nothing."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from harness.lab.experiment.recording_result import finish
from harness.recording.process import ProcessLog
from harness.recording.program_state import gpus_in_use
from harness.recording.recorder import Recorder
from harness.recording.run_spec import PROCESSES, Report, RunSpec
from harness.trace import read_trace
from harness.trace.diff import diff
from harness.trace.manifest import with_gpus
from harness.trace.verdict import Kind, VerdictCode
from tests.support.traces import flip_bit, manifest_of, steps_of, write


@dataclass
class Gpu:
    """Properties of a GPU, as torch has them."""

    name: str
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    total_memory: int = 85_017_493_504


H100, H200 = Gpu("NVIDIA H100 80GB HBM3"), Gpu("NVIDIA H200", total_memory=150_754_820_096)
SLICE = Gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", multi_processor_count=16, total_memory=10_468_982_784)
TEXTS = {
    "h100": "NVIDIA H100 80GB HBM3, capability 9.0, 132 SMs, 79 GiB",
    "h200": "NVIDIA H200, capability 9.0, 132 SMs, 140 GiB",
    "slice": "NVIDIA H100 80GB HBM3 MIG 1g.10gb, capability 9.0, 16 SMs, 10 GiB",
}


@dataclass
class Machine:
    """What stands in for torch.cuda: GPUs, which of them hold memory, whether CUDA is initialised; counts questions."""

    gpus: list[Gpu]
    in_use: set[int] = field(default_factory=set)
    is_initialized: bool = False
    fails: bool = False
    num_questions: int = 0

    def answer(self, value: object) -> object:
        self.num_questions += 1
        assert self.is_initialized, "this question would initialise CUDA"
        if self.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return value


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine([H100, H100, H200, SLICE])
    answers = {
        "is_initialized": lambda: made.is_initialized,
        "device_count": lambda: made.answer(len(made.gpus)),
        "current_device": lambda: made.answer(0),
        "memory_reserved": lambda index: made.answer(2**20 if index in made.in_use else 0),
        "get_device_properties": lambda index: made.answer(made.gpus[index]),
        "_lazy_init": lambda: pytest.fail("CUDA was initialised"),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return made


def test_nothing_is_asked_before_the_program_has_initialised_cuda(machine: Machine) -> None:
    assert gpus_in_use() == ()
    assert machine.num_questions == 0


@pytest.mark.parametrize(("in_use", "expected"), [(set(), ["h100"]), ({1}, ["h100"]), ({0, 2, 3}, [*TEXTS])])
def test_each_model_in_use_is_named_once_with_its_mig_profile(
    machine: Machine, in_use: set[int], expected: list[str]
) -> None:
    machine.is_initialized, machine.in_use = True, in_use
    assert gpus_in_use() == tuple(sorted(TEXTS[name] for name in expected))


def end_step(recorder: Recorder, step: int) -> None:
    recorder.begin_step(step)
    recorder.record("loss", "loss", torch.tensor(float(step)))
    recorder.end_step()


def gpu_of(directory: Path) -> str | None:
    manifest = read_trace(directory).manifest
    assert manifest is not None
    return manifest.fingerprint.numerics.get("gpu")


def test_the_trace_names_gpus_from_the_step_on_in_which_they_are_seen(tmp_path: Path, machine: Machine) -> None:
    log = ProcessLog(RunSpec(directory=str(tmp_path)))
    recorder = Recorder(log)
    end_step(recorder, 0)
    assert gpu_of(tmp_path) is None
    machine.is_initialized = True
    end_step(recorder, 1)
    assert gpu_of(tmp_path) == TEXTS["h100"]  # also of a program that is killed now
    asked = machine.num_questions
    end_step(recorder, 2)
    assert machine.num_questions == asked
    machine.in_use = {2}
    log.close()
    assert gpu_of(tmp_path) == f"{TEXTS['h100']}; {TEXTS['h200']}"
    assert read_trace(tmp_path).gaps == ()


def test_a_gpu_that_does_not_answer_ends_no_recording(tmp_path: Path, machine: Machine) -> None:
    machine.is_initialized = machine.fails = True
    log = ProcessLog(RunSpec(directory=str(tmp_path)))
    end_step(Recorder(log), 0)
    log.close()
    assert (gpu_of(tmp_path), read_trace(tmp_path).gaps) == (None, ())


def test_models_of_every_rank_are_those_of_the_trace(tmp_path: Path, machine: Machine) -> None:
    machine.is_initialized = True
    log = ProcessLog(RunSpec(directory=str(tmp_path)))
    end_step(Recorder(log), 0)
    log.close()
    other = Report(pid=1, argv=(), python="python", is_closed=True, gpus=(TEXTS["slice"], TEXTS["h100"]))
    (tmp_path / PROCESSES / "1.json").write_text(other.to_text())
    finish(tmp_path, RunSpec(argv=("python", "train.py")), 0, leader_pid=os.getpid())
    assert gpu_of(tmp_path) == f"{TEXTS['slice']}; {TEXTS['h100']}"


def test_traces_of_other_models_are_not_comparable_unless_they_are_equal(tmp_path: Path) -> None:
    a, b = (with_gpus(manifest_of(numerics={"machine": "x86_64"}), [TEXTS[name]]) for name in ("h100", "h200"))
    flip = flip_bit(1, "backward", "layers.0.weight")
    write(tmp_path / "a", steps_of(3), a)
    write(tmp_path / "other", steps_of(3, flip), b)
    write(tmp_path / "equal", steps_of(3), b)
    write(tmp_path / "same", steps_of(3, flip), replace(a))
    left, other, equal, same = (read_trace(tmp_path / name) for name in ("a", "other", "equal", "same"))
    verdict = diff(left, other)
    assert (verdict.kind, verdict.reasons) == (
        Kind.NOT_COMPARABLE,
        (VerdictCode.NUMERICS_DIFFER(names=("gpu",)),),
    )
    assert diff(left, equal).kind is Kind.EQUAL
    assert diff(left, same).kind is Kind.DIVERGED
