"""`rlharness train` and `scenarios` as they are typed: what is recorded, what is refused, how an entry may end."""

import json
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.experiment.preparation import prepare
from harness.lab.experiment.recording_result import finish
from harness.recording.process import write_report
from harness.recording.run_spec import PROCESSES, EntryCall, Report, RunSpec
from harness.trace import read_trace
from harness.trace.ops import read_ops, recorded_steps
from tests.lab.scenario_texts import write_tiny
from tests.support.cli_commands import Done, type_command, type_here
from tests.support.verified import verify

pytest.importorskip("torch")


def train(directory: Path, *words: str, **env: str) -> Done:
    """The scenario `tiny` into the directory t."""
    write_tiny(directory)
    return type_command(directory, "train", "tiny", "--out", "t", *words, **env)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """One run that is whole, which several tests look at."""
    directory = tmp_path_factory.mktemp("trained")
    words = ("--set", "seed=7", "--set", "api_key=verysecret", "--save-tensors", "1", "--trace-ops", "0", "--json")
    return directory, train(directory, *words)


@pytest.mark.full
def test_a_run_is_recorded(trained: tuple[Path, Done]) -> None:
    directory, done = trained
    assert done.code == ExitCode.OK, done.stderr
    told = json.loads(done.stdout)
    assert (told["exit_code"], told["recording"]["is_whole"], told["recording"]["num_steps"]) == (0, True, 5)
    entry = "tests.lab.tiny_entry:run"
    assert told["scenario"] == {"name": "tiny", "entry": entry, "size": "full", "level": "invariant"}
    assert '{"loss": 1.5}' in done.stderr, "what the entry prints makes way for JSON"
    assert "  compare it with another:  rlharness diff t OTHER\n" in done.stderr
    assert (told["stop"], told["next"]) == (None, None)
    trace = read_trace(directory / "t")
    assert (trace.gaps, list(trace.steps), list(verify(trace))) == ((), [0, 1, 2, 3, 4], [])
    assert trace.manifest is not None
    fingerprint = trace.manifest.fingerprint
    assert trace.manifest.level == "invariant"
    assert trace.manifest.argv == ("rlharness", "train", *typed())
    assert fingerprint.identity["seed"] == "7"
    assert fingerprint.perturbation["runtime.num_parts"] == "4"
    assert not {"runtime.num_parts", "output"} & fingerprint.identity.keys()


def typed() -> tuple[str, ...]:
    return ("tiny", "--size", "full", "--set", "seed=7", "--set", "api_key=<redacted>")


def test_the_entry_was_called_with_its_payload_its_level_and_its_directory(trained: tuple[Path, Done]) -> None:
    directory, _ = trained
    seen = json.loads((directory / "t" / "seen.json").read_text("utf-8"))
    assert seen["level"] == "invariant"
    assert (seen["config"]["seed"], seen["config"]["api_key"]) == (7, "verysecret")
    kept = [path for path in (directory / "t").rglob("*") if path.is_file() and path.name != "seen.json"]
    assert [path.name for path in kept if b"verysecret" in path.read_bytes()] == [], "traces travel"


def test_tensors_and_operations_of_steps_are_kept(trained: tuple[Path, Done]) -> None:
    directory, _ = trained
    kept = [path.name for path in (directory / "t" / "tensors").iterdir()]
    assert any("1" in name for name in kept)
    assert list(recorded_steps(directory / "t")) == [(0, 0)]
    operations = read_ops(directory / "t", 0, 0)
    assert operations is not None
    names = [each.name for each in operations.operations]
    assert names[0] == "aten.randn.generator", "of the entry alone: nothing of what looks at its values"
    assert operations.problem == ""


@pytest.mark.full
def test_what_an_entry_refuses_is_a_usage_error_and_leaves_nothing(tmp_path: Path) -> None:
    done = train(tmp_path, "--json", "--set", "frobnicate=1")
    assert done.code == ExitCode.USAGE_ERROR
    assert done.stderr.startswith("error: unknown key frobnicate\n  legal:  the keys of this entry\n  remedy: leave it")
    assert json.loads(done.stdout)["error"].startswith("unknown key frobnicate")
    assert not (tmp_path / "t").exists()


@pytest.mark.full
@pytest.mark.parametrize("words", [("train",), ("replay",)])
def test_a_refusal_leaves_the_directory_that_somebody_had_made(tmp_path: Path, words: tuple[str, ...]) -> None:
    write_tiny(tmp_path)
    (tmp_path / "t").mkdir()
    command, *options = words
    done = type_command(tmp_path, command, "tiny", "--out", "t", "--set", "frobnicate=1", *options)
    assert (done.code, "unknown key frobnicate" in done.stderr) == (ExitCode.USAGE_ERROR, True), done.stderr
    assert list((tmp_path / "t").iterdir()) == []


@pytest.mark.full
def test_a_run_that_fails_keeps_what_it_recorded(tmp_path: Path) -> None:
    done = train(tmp_path, "--set", "ends=failed")
    assert done.code == 1, done.stderr
    assert "error: step 2 is not finite\n  legal:  finite numbers\n  remedy: lower the learning rate\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith(
        "rlharness:   debug the step that it died in: rlharness reproduce t --step 2 --interactive\n"
    )
    told = json.loads((tmp_path / "t" / "recording.json").read_text("utf-8"))
    assert (told["is_whole"], told["num_steps"], told["exit_code"]) == (False, 2, 1)


def test_an_entry_that_records_nothing_is_told_so(tmp_path: Path) -> None:
    run_spec = RunSpec(("python",), call=EntryCall("a:b", {}))
    prepare(run_spec, tmp_path / "t", {})
    write_report(tmp_path / "t" / PROCESSES, Report(2**22 + 1, ("x",), "python", is_closed=True, has_returned=True))
    recording = finish(tmp_path / "t", run_spec, 0)
    assert [problem.what for problem in recording.problems] == ["a:b has returned and recorded no step"]
    assert "begin_step" in recording.problems[0].remedy


@pytest.mark.full
@pytest.mark.parametrize("how", ["left", "exited"])
@pytest.mark.parametrize(("at", "said"), [(0, "before it had recorded a step"), (3, "after 3 steps")])
def test_an_entry_that_leaves_has_ended_too_early_whatever_its_exit_code(
    tmp_path: Path, how: str, at: int, said: str
) -> None:
    done = train(tmp_path, "--set", f"ends={how}", "--set", f"left_at={at}")
    assert done.code == ExitCode.INCOMPLETE_RECORDING, done.stderr
    assert f"tests.lab.tiny_entry:run ended too early, {said}: its process exited with 0" in done.stderr
    assert "compare it with another" not in done.stderr


@pytest.mark.full
def test_an_entry_that_has_returned_is_whole_however_its_process_ends(tmp_path: Path) -> None:
    done = train(tmp_path, "--set", "ends=late")
    assert done.code == ExitCode.OK, done.stderr
    assert "note: rank 0 left by os._exit with 0 after 5 steps; its log was closed" in done.stderr


# -------------------------------------------------------------------------------------------------------- scenarios


def test_scenarios_are_listed(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "scenarios" / "broken.yaml").write_text("about: [", encoding="utf-8")
    done = type_here(tmp_path, "scenarios")
    assert done.code == ExitCode.OK
    assert "tiny: A sum in parts\n  level invariant, sizes smoke, full, GPUs 0, tests.lab.tiny_entry:run" in done.stdout
    assert "broken: cannot be read\n  " in done.stdout
    told = json.loads(type_here(tmp_path, "scenarios", "--json").stdout)
    by_name = {each["name"]: each for each in told["scenarios"]}
    assert by_name["tiny"]["sizes"] == ["smoke", "full"]
    assert by_name["tiny"]["path"] == str(tmp_path / "scenarios" / "tiny.yaml")
    assert "line 1, column 9" in by_name["broken"]["problem"]
    assert by_name["grpo_sorting"]["determinism"] == "invariant"
