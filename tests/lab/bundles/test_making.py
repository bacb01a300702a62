"""What a bundle takes of a recorded run, and that it is a recorded run again when it is unpacked."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.errors import BundleError, UsageError
from harness.lab.experiments.bundle import bundle_place, checkpoint_digest, checkpoint_of, open_bundle, write_bundle_of
from harness.lab.experiments.recorded_run import (
    RecordedRun,
    is_unfinished,
    read_recorded_run,
    recorded_steps_of,
    trace_of_step,
)
from harness.lab.reproduce.reproduction import unpacked
from harness.recording.entry_call import EntryCall
from harness.trace.diff import diff
from harness.trace.excerpt import excerpt
from harness.trace.layout import UNFINISHED
from harness.trace.reader import chain_breaks
from harness.trace.verdict import Kind
from tests.support.traces import manifest_of, steps_of, write

RESUME = {"run": "output.resume", "step": "output.resume_step"}
CONFIG = {"seed": 7, "judge": {"api_key": "abc"}, "output": {"note": "x"}}
CALL = EntryCall("a:b", CONFIG, ("output",), RESUME)


def recorded(directory: Path, call: EntryCall = CALL, checkpoints: tuple[int, ...] = (2, 4)) -> RecordedRun:
    """A run of six steps."""
    write(
        directory,
        steps_of(6),
        replace(
            manifest_of(numerics={"variable HF_TOKEN": "abcd"}),
            argv=("rlharness", "train", "tiny", "--token", "abcdef"),
        ),
    )
    call.write(directory)
    for step in checkpoints:
        place = directory / "checkpoints" / f"step-{step:06}"
        (place / "policy").mkdir(parents=True)
        (place / "values.json").write_text(f"{step}", "utf-8")
        (place / "policy" / "model.safetensors").write_text("w" * step, "utf-8")
    return read_recorded_run(directory)


def test_a_bundle_is_a_recorded_run_cut_down_to_a_step(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    head = write_bundle_of(run, 5, tmp_path / "a.rlb")
    assert (head.step, head.start, head.checkpoint) == (5, 4, None)
    assert sorted(head.members) == [
        *("call.json", "checkpoints/step-000004/policy/model.safetensors", "checkpoints/step-000004/values.json"),
        *("curve.jsonl", "manifest.json", "rank-0.log"),
    ]

    again = unpacked(open_bundle(tmp_path / "a.rlb"), tmp_path / "again")
    assert again.trace.steps == (4, 5)
    assert diff(excerpt(run.trace, 4, 5), again.trace).kind is Kind.EQUAL
    assert [chain_breaks(log, None) for log in again.trace.ranks.values()] == [[]]
    assert again.start_before(5) == 4
    assert len(again.trace.curve) == 6, "the curve of the whole run"
    assert (again.level, again.entry_call.entry, again.entry_call.runtime_sections, again.entry_call.resume) == (
        "off",
        "a:b",
        ("output",),
        RESUME,
    )
    written = "".join(path.read_text("utf-8", errors="replace") for path in (tmp_path / "again").rglob("*.json"))
    assert "abc" not in written, "no secrets"


def test_equal_runs_make_equal_bundles_wherever_they_lie(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_bundle_of(recorded(tmp_path / name), 3, tmp_path / f"{name}.rlb")
    assert (tmp_path / "a.rlb").read_bytes() == (tmp_path / "b.rlb").read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "a.rlb").read_bytes()


def test_a_checkpoint_that_is_only_named_has_to_be_the_same(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    head = write_bundle_of(run, 3, tmp_path / "a.rlb", refers_to_checkpoint=True)
    place = tmp_path / "run" / "checkpoints" / "step-000002"
    assert head.checkpoint is not None
    assert (head.checkpoint.path, head.checkpoint.digest) == (str(place), checkpoint_digest(place))
    assert not any("checkpoint" in name for name in head.members)
    again = unpacked(open_bundle(tmp_path / "a.rlb"), tmp_path / "again")
    assert again.start_before(3) == 2
    assert (again.directory / "checkpoints" / "step-000002" / "values.json").read_text("utf-8") == "2"

    (place / "values.json").write_text("3", "utf-8")
    with pytest.raises(BundleError, match="which is another one"):
        unpacked(open_bundle(tmp_path / "a.rlb"), tmp_path / "other")
    shutil.rmtree(place)
    with pytest.raises(BundleError, match="which is not there"):
        unpacked(open_bundle(tmp_path / "a.rlb"), tmp_path / "third")


def test_a_bundle_goes_where_directories_can_be_made_for_it(tmp_path: Path) -> None:
    assert bundle_place(tmp_path, "new/er/a") == tmp_path / "new" / "er" / "a.rlb"
    assert not (tmp_path / "new").exists(), "not before there is something to put there"
    write_bundle_of(recorded(tmp_path / "run"), 3, bundle_place(tmp_path / "run", "../new/a.b"))
    assert bundle_place(tmp_path, "new/a.b") == tmp_path / "new" / "a.b", "an earlier bundle is replaced"
    (tmp_path / "notes").write_text("mine", "utf-8")
    for name, said in (
        ("notes/a", "cannot be written: .*notes is not a writable directory"),
        ("run/call.json", "is not a bundle"),
    ):
        with pytest.raises(UsageError, match=said):
            bundle_place(tmp_path, name)


def test_a_run_that_has_gone_on_from_another_takes_that_ones_checkpoint(tmp_path: Path) -> None:
    first = recorded(tmp_path / "first")
    config = {**CONFIG, "output": {"note": "x", "resume": str(first.directory), "resume_step": 2}}
    second = recorded(tmp_path / "second", replace(CALL, config=config), checkpoints=(4,))
    assert checkpoint_of(second, 5) == (tmp_path / "second" / "checkpoints" / "step-000004", 4)
    assert checkpoint_of(second, 3) == (tmp_path / "first" / "checkpoints" / "step-000002", 2)

    head = write_bundle_of(second, 3, tmp_path / "a.rlb")
    assert head.start == 2
    again = unpacked(open_bundle(tmp_path / "a.rlb"), tmp_path / "again")
    assert again.entry_call.config["output"] == {"note": "x"}
    shutil.rmtree(first.directory)
    with pytest.raises(BundleError, match="which no longer exists"):
        write_bundle_of(second, 3, tmp_path / "b.rlb")


def test_a_step_in_whose_middle_a_run_ended_is_taken_as_far_as_it_went(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    write(run.directory / UNFINISHED, [[], *([[]] * 5), steps_of(1)[0][:3]])
    assert recorded_steps_of(run.trace) == [0, 1, 2, 3, 4, 5, 6]
    assert is_unfinished(run.trace, 6)
    write_bundle_of(run, 6, tmp_path / "a.rlb")

    again = unpacked(open_bundle(tmp_path / "a.rlb"), tmp_path / "again")
    assert again.trace.steps == (4, 5)
    step = trace_of_step(again.trace, 6)
    assert step is not None
    assert step.ranks[0].heads[6].num_values == 3


def test_a_step_that_was_not_recorded_has_no_bundle(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    with pytest.raises(UsageError, match="a step that it has recorded: 0 to 5"):
        write_bundle_of(run, 6, tmp_path / "a.rlb")
    with pytest.raises(BundleError, match="cannot be written"):
        write_bundle_of(run, 5, tmp_path)


def test_a_checkpoint_with_files_that_may_hold_code_is_named_or_left_out(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    (run.checkpoint(4) / "optimizer.pt").write_bytes(b"a pickle")

    with pytest.raises(BundleError, match=r"step-000004/optimizer\.pt' is not allowed in a bundle") as told:
        write_bundle_of(run, 5, tmp_path / "a.rlb")
    assert "--reference-checkpoint" in told.value.remedy
    assert not (tmp_path / "a.rlb").exists()
    write_bundle_of(run, 3, tmp_path / "b.rlb")
    write_bundle_of(run, 5, tmp_path / "c.rlb", refers_to_checkpoint=True)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((name, "secret.txt") for name in ("curve.jsonl", "checkpoints/step-000002/policy/notes.txt")),
        *((f"checkpoints/step-000002/{name}", "secret.txt") for name in ("x.json", "values.json")),
        *(("checkpoints/step-000002", "home/step-000002"), ("checkpoints", "home")),
        *(("checkpoints/step-000002/x.json", "/proc/self/fd/0"), ("curve.jsonl", "/proc/self/environ")),
    ],
)
def test_a_link_out_of_the_run_is_not_followed(name: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "home" / "step-000002").mkdir(parents=True)
    for secret in (tmp_path / "secret.txt", tmp_path / "home" / "step-000002" / "secret.txt"):
        secret.write_text("classified")
    run = recorded(tmp_path / "run")
    path = tmp_path / "run" / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / target)
    with pytest.raises(BundleError, match="is a link") as refused:
        write_bundle_of(run, 3, tmp_path / "b.rlb")
    assert "classified" not in str(refused.value)
    assert not (tmp_path / "b.rlb").exists()


def test_a_directory_of_links_to_a_run_is_a_run(tmp_path: Path) -> None:
    recorded(tmp_path / "scratch")
    (tmp_path / "run").symlink_to(tmp_path / "scratch")
    run = read_recorded_run(tmp_path / "run")
    assert write_bundle_of(run, 3, tmp_path / "b.rlb").step == 3
