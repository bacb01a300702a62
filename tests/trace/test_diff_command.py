"""`rlharness diff` as it is typed: exit codes, JSON, refusals."""

import json
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.cli.main import main
from tests.support.traces import flip_bit, manifest_of, steps_of, write


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with traces, which is the working directory."""
    write(tmp_path / "a", steps_of(3))
    write(tmp_path / "same", steps_of(3))
    write(tmp_path / "sick", steps_of(3, flip_bit(1, "backward", "layers.0.weight")))
    write(tmp_path / "seed", steps_of(3), manifest_of(identity={"seed": "8"}))
    write(tmp_path / "cut", steps_of(2), complete=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("other", "code", "verdict"),
    [
        ("same", ExitCode.OK, "equal"),
        ("sick", ExitCode.DIVERGED, "diverged"),
        ("seed", ExitCode.NOT_COMPARABLE, "not_comparable"),
        ("cut", ExitCode.INCOMPLETE_RECORDING, "incomplete"),
    ],
)
@pytest.mark.usefixtures("traces")
def test_exit_codes(capsys: pytest.CaptureFixture[str], other: str, code: ExitCode, verdict: str) -> None:
    assert main(["diff", "a", other, "--json"]) == code
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["exit_code"], told["verdict"], err) == (code, verdict, "")
    assert main(["diff", "a", other]) == code
    out, _ = capsys.readouterr()
    assert out.startswith(verdict.replace("_", " ").upper())


@pytest.mark.parametrize(
    ("other", "command"),
    [
        ("same", None),
        ("sick", "  look closer: rlharness replay --step 1 --trace-ops -- python train.py --name 'a\\x1bb'"),
        ("seed", "  see both on one page: rlharness report a seed"),
        ("cut", "  see both on one page: rlharness report a cut"),
    ],
)
def test_each_verdict_but_equal_ends_with_a_command(
    traces: Path, capsys: pytest.CaptureFixture[str], other: str, command: str | None
) -> None:
    for manifest in traces.glob("*/manifest.json"):
        fields = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**fields, "argv": ["python", "train.py", "--name", "a\x1bb"]}))
    main(["diff", "a", other])
    *_, last = capsys.readouterr().out.splitlines()
    assert (last == command) if command else "rlharness" not in last


def test_paths_may_be_absolute(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(traces / "a"), "same", "--color", "always"]) == ExitCode.OK
    assert capsys.readouterr().out == "\x1b[32mEQUAL\x1b[0m  3 steps, every recorded bit\n"


def test_what_is_no_trace_is_a_usage_error(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a", "nowhere", "--json"]) == ExitCode.USAGE_ERROR
    out, err = capsys.readouterr()
    assert err.startswith("error: no trace in nowhere\n  legal:  a directory with manifest.json and rank-0.log")
    assert json.loads(out)["exit_code"] == ExitCode.USAGE_ERROR
    assert main(["diff", "a"]) == ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("other", "steps", "code"),
    [
        ("sick", "0", ExitCode.OK),
        ("sick", "0-1", ExitCode.DIVERGED),
        ("cut", "0-1", ExitCode.OK),
        ("cut", "0-2", ExitCode.INCOMPLETE_RECORDING),
        ("cut", "2", ExitCode.USAGE_ERROR),
        ("same", "2-1", ExitCode.USAGE_ERROR),
        ("same", "all", ExitCode.USAGE_ERROR),
        ("same", "-1", ExitCode.USAGE_ERROR),
    ],
)
@pytest.mark.usefixtures("traces")
def test_some_steps_are_compared_alone(other: str, steps: str, code: ExitCode) -> None:
    assert main(["diff", "a", other, "--steps", steps]) == code


def test_a_resumed_run_is_compared_from_a_step_on(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = manifest_of(identity={"seed": "7", "--resume": "checkpoint"})
    write(traces / "resumed", steps_of(5)[2:], again)
    write(traces / "other", steps_of(5, flip_bit(3, "loss", "loss"))[2:], again)
    write(traces / "long", steps_of(5))
    assert main(["diff", "long", "resumed", "--shift", "2"]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        "EQUAL  3 steps, every recorded bit",
        "  note: B's step 0 is A's step 2: compared steps 2 to 4, without the curves; differing fields of the identity"
        " that were not compared: --resume",
    ]
    assert main(["diff", "long", "other", "--shift", "2", "--json"]) == ExitCode.DIVERGED
    assert json.loads(capsys.readouterr().out)["first"]["step"] == 3
    assert main(["diff", "long", "resumed", "--shift", "1"]) == ExitCode.DIVERGED
    assert main(["diff", "long", "resumed", "--shift", "7"]) == ExitCode.USAGE_ERROR
    assert main(["diff", "long", "resumed", "--shift", "0"]) == ExitCode.USAGE_ERROR
