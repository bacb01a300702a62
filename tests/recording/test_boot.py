"""What every Python process of a recorded program does before its own first line."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness.lab.experiment.recording_result import read_reports
from harness.lab.experiment.single_run import BREAKPOINTS
from harness.recording import automatic
from harness.recording.boot_hooks import import_hooks
from harness.recording.run_spec import RUN, RUN_VARIABLE, RunSpec, boot_directory
from harness.trace import read_trace
from harness.trace.ops import read_ops
from tests.support.recorded_programs import ROOT, Ran, program, record, run


def start(
    code: str, orders: RunSpec, *, paths: tuple[Path, ...] = (), variables: Mapping[str, str] | None = None
) -> Ran:
    """Run code in a process that finds these orders, with the boot directory in front of `paths`."""
    file = Path(orders.directory, RUN)
    file.write_text(orders.to_text())
    path = os.pathsep.join(map(str, (boot_directory(), *paths)))
    command = [
        "env",
        f"PYTHONPATH={path}",
        f"{RUN_VARIABLE}={file}",
        *(f"{k}={v}" for k, v in (variables or {}).items()),
    ]
    return run(*command, sys.executable, "-c", code)


SECRETS = ("--api-key=SHADOWSECRET12345", "--lr", "1", "--password", "SHADOWSECRET12345")


def problems(directory: Path) -> list[str]:
    return [report.problem for report in read_reports(directory)]


def test_orders_and_reports_survive_their_files() -> None:
    orders = RunSpec(
        argv=("a", "b"),
        identity={"c": "d"},
        metrics=("x=(.)",),
        keep=(1, 2),
        op_step=3,
        level="deterministic",
        level_env={"PYTHONHASHSEED": "0"},
        perturbation={"threads": "2"},
        has_entry=True,
        directory="/d",
    )
    assert RunSpec.parse(orders.to_text()) == orders


def test_of_an_entry_nothing_is_watched_that_logs() -> None:
    watched = [
        import_hooks({"level": "off", "has_entry": each}, lambda: "harness", print).keys() for each in (True, False)
    ]
    assert watched[0] == {"torch", "numpy.random"}
    assert watched[0] < watched[1]


def test_a_process_without_torch_leaves_nothing(tmp_path: Path) -> None:
    done = start("import json; print('ran')", RunSpec(directory=str(tmp_path)))
    assert (done.exit_code, done.output, done.errors) == (0, "ran\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [RUN]


@pytest.mark.full
def test_the_sitecustomize_that_is_hidden_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    done = start("print('ran')", RunSpec(directory=str(tmp_path)), paths=(tmp_path, ROOT))
    assert (done.exit_code, done.output) == (0, "theirs\nran\n")


TRAINS = """import os, torch
os.environ["PYTHONHASHSEED"] = "0"  # too late
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
(2 * weight).sum().backward()
optimizer.step()
print("ran")
"""


@pytest.mark.full
@pytest.mark.parametrize(("found", "variables"), [("not set", {}), ("7", {"PYTHONHASHSEED": "7"})])
def test_a_process_without_the_levels_variables_runs_and_is_not_recorded(
    found: str, variables: dict[str, str], tmp_path: Path
) -> None:
    """What takes no step is none of the recorder's business: libraries start children with variables of their own."""
    orders = RunSpec(directory=str(tmp_path), level="deterministic", level_env={"PYTHONHASHSEED": "0"})
    done = start("import torch; print('ran')", orders, variables=variables)
    assert (done.exit_code, done.output, done.errors) == (0, "ran\n", "")
    assert problems(tmp_path) == [""]
    done = start(TRAINS, orders, variables=variables)
    assert (done.exit_code, done.output) == (0, "ran\n")
    (problem,) = filter(None, problems(tmp_path))
    assert f"wants PYTHONHASHSEED=0, and this process was started with it {found}" in problem
    assert problem in done.errors
    assert not list(tmp_path.glob("*.log"))


@pytest.mark.parametrize(
    "is_beside",
    [pytest.param(True, id="beside it", marks=pytest.mark.full), pytest.param(False, id="on the path")],
)
def test_a_program_with_a_package_of_that_name_keeps_it_and_is_recorded(is_beside: bool, tmp_path: Path) -> None:
    directories = [tmp_path / "program", tmp_path / "other"]
    theirs = directories[0 if is_beside else 1] / "harness"
    for each in (*directories, theirs):
        each.mkdir()
    (theirs / "__init__.py").write_text("mine = True\n")
    program = directories[0] / "program.py"
    program.write_text(
        "import sys, torch, harness\n"
        "weight = torch.zeros(2, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "(weight - 1).square().sum().backward()\n"
        "optimizer.step()\n"
        "import harness\n"
        "print(harness.mine, [x for x in sys.modules if x.startswith('harness')])\n"
    )
    told = {"conditions": ["nan"], "report": str(tmp_path / "stop")}
    orders = RunSpec(directory=str(tmp_path), callbacks={BREAKPOINTS: told})
    (tmp_path / RUN).write_text(orders.to_text())
    path = f"{boot_directory()}{os.pathsep}{directories[1]}"
    done = run("env", f"PYTHONPATH={path}", f"{RUN_VARIABLE}={tmp_path / RUN}", sys.executable, str(program), *SECRETS)
    assert (done.exit_code, done.output, done.errors) == (0, "True ['harness']\n", "")
    assert problems(tmp_path) == [""]
    assert read_trace(tmp_path).steps == (0,)


def test_the_tests_of_a_project_with_a_package_of_that_name_run_beside_our_plugin(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("mine = True\n")
    (tmp_path / "test_a.py").write_text(
        "import harness, pytest\n@pytest.mark.gpus(0)\ndef test_theirs(): assert harness.mine\n"
    )
    command = ["env", "-C", str(tmp_path), "-u", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", sys.executable, "-m", "pytest"]
    done = run(*command, "--strict-markers")
    assert done.exit_code == 0, done.output


def test_orders_that_are_gone_are_said(tmp_path: Path) -> None:
    done = run("env", f"PYTHONPATH={boot_directory()}", f"{RUN_VARIABLE}={tmp_path}/no", sys.executable, "-c", "1")
    assert "no such file" in done.errors.lower()


@pytest.mark.full
@pytest.mark.parametrize("is_recorded", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_program_that_names_its_own_steps(is_recorded: bool, tmp_path: Path) -> None:
    if not is_recorded:
        assert run(*program("plain_loop")).exit_code == 0
        return
    record(tmp_path / "trace", program("plain_loop"), "--trace-ops", "0")
    trace = read_trace(tmp_path / "trace")
    assert (trace.gaps, trace.steps) == ((), (0, 1, 2, 3, 4))
    assert [(recorded_value.phase, recorded_value.name) for recorded_value in trace.ranks[0].columns(4).values()] == [
        ("rollout", "actions"),
        ("reward", "rewards"),
        ("advantage", "advantages"),
        ("backward", "policy"),
        ("optimizer", "policy"),
    ]
    assert [point.values["reward_mean"].dtype for point in trace.curve] == ["f32"] * 5
    assert len(list((tmp_path / "trace" / "tensors").iterdir())) == 5
    recorded = read_ops(tmp_path / "trace", 0, 0)
    assert recorded is not None
    assert [each.name for each in recorded.operations].count("aten.multinomial.default") == 1, "of one step alone"
    assert recorded.problem == ""


@pytest.mark.full
def test_an_interpreter_that_cannot_take_secrets_out_tells_the_program_alone(tmp_path: Path) -> None:
    """An old one: the harness is a copy whose redaction is a syntax error to it."""
    package = tmp_path / "copy" / "harness"
    shutil.copytree(ROOT / "harness" / "recording", package / "recording")
    (package / "bits").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "bits" / "redaction.py").write_text("this is of another age\n")
    (tmp_path / "program" / "harness").mkdir(parents=True)
    (tmp_path / "program" / "harness" / "__init__.py").write_text("")
    program = tmp_path / "program" / "program.py"
    program.write_text("import torch\nprint('ran')\n")
    (tmp_path / RUN).write_text(RunSpec(directory=str(tmp_path)).to_text())
    path = package / "recording" / "boot"
    command = ("env", f"PYTHONPATH={path}", f"{RUN_VARIABLE}={tmp_path / RUN}", sys.executable, str(program))
    done = run(*command, *SECRETS)
    assert (done.output, done.errors) == ("ran\n", "")
    (report,) = read_reports(tmp_path)
    assert report.argv == (str(program),)


def test_a_library_of_an_unknown_version_leaves_the_program_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hooks = import_hooks({"level": "off"}, lambda: "harness", print)
    monkeypatch.setattr(automatic, "start_recording", print)
    hooks["torch"](ModuleType("torch"))
    hooks["trl.trainer.rloo_trainer"](SimpleNamespace(__name__="rloo", RLOOTrainer=object))  # type: ignore[arg-type]
    assert "what rloo logs or samples is not recorded: " in capsys.readouterr().err
