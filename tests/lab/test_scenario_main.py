"""How an entry is found and called, and which of its errors are the user's to mend."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.bits.errors import TraceError, UsageError
from harness.lab.experiment import scenario_main
from harness.lab.experiment.scenario_main import as_rejection, call_entry, load_entry
from harness.recording.recorder import NullRecorder
from harness.recording.run_spec import INTERRUPTED, EntryCall, Rejection, read_rejection
from tests.lab.tiny_entry import MendableError


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("frobnicate.x:run", "entry frobnicate.x:run: there is no module frobnicate", "spelling"),
        ("tests.lab.frobnicate:run", "there is no module tests.lab.frobnicate", "spelling"),
        ("entry_without_its_engine:run", "there is no module frobnicate_engine", "pip install"),
        ("tests.lab.tiny_entry:runn", "tests.lab.tiny_entry has no function runn", ""),
        ("tests.lab.tiny_entry:KEYS", "has no function KEYS", ""),
    ],
)
def test_an_entry_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str, remedy: str
) -> None:
    (tmp_path / "entry_without_its_engine.py").write_text("import frobnicate_engine\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as refused:
        load_entry(name)
    assert what in refused.value.what
    assert remedy in refused.value.remedy
    if name.endswith(":runn"):
        assert refused.value.legal.startswith("run")


def test_errors_that_say_what_is_legal_are_the_users_and_others_are_bugs() -> None:
    assert as_rejection(MendableError("a", "b", "c")) == Rejection("a", "b", "c")
    assert as_rejection(UsageError("a")) == Rejection("a", "", "")
    assert as_rejection(ValueError("a")) is None
    full = as_rejection(OSError(28, "No space left on device"))
    assert full is not None and "No space left on device" in full.what and "another disk" in full.remedy
    assert as_rejection(TraceError("outside a step")) is None, "the entry calls the recorder wrongly"


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ("whole", 0, ""),
        ("refused", 4, ""),
        ("failed", 1, "error: step 2 is not finite\n  legal:  finite numbers\n  remedy: lower the learning rate\n"),
    ],
)
def test_exit_codes_of_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ends: str, code: int, said: str
) -> None:
    assert call_tiny(tmp_path, ends, has_begun=ends != "refused") == code
    assert capsys.readouterr().err == said
    assert (read_rejection(tmp_path) is not None) == (ends == "refused")


def test_an_interruption_is_told_in_a_line_whenever_it_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scenario_main, "open_recorder", interrupted)
    assert scenario_main.main() == INTERRUPTED
    assert capsys.readouterr().err == "rlharness: interrupted\n"


def test_a_machine_without_memory_is_told_and_a_bug_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unloaded() -> None:
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")

    monkeypatch.setattr(scenario_main, "open_recorder", unloaded)
    assert scenario_main.main() == 1
    said = capsys.readouterr().err
    assert said.startswith("error: there is no memory left (") and "libtorch_cpu.so" in said and "  remedy: " in said
    monkeypatch.setattr(scenario_main, "exhaustion_of", lambda error: None)
    with pytest.raises(ImportError):
        scenario_main.main()


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_error_that_ends_a_step_is_told_before_it_is_printed(tmp_path: Path, *, has_begun: bool) -> None:
    told: list[str] = []
    call_tiny(tmp_path, "failed", has_begun=has_begun, told=lambda error: told.append(type(error).__name__))
    assert told == (["MendableError"] if has_begun else [])


def call_tiny(
    directory: Path, ends: str, *, has_begun: bool, told: Callable[[BaseException], None] = lambda error: None
) -> int:
    config = {"seed": 1, "num_steps": 3, "leaks": False, "ends": ends, "runtime": {"num_parts": 2}}
    EntryCall("tests.lab.tiny_entry:run", config).write(directory)
    return call_entry(directory, "off", NullRecorder(), has_begun=lambda: has_begun, told=told)
