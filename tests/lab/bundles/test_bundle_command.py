"""A bundle of a run that went NaN, run again in a fresh clone: its first operation is named there."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.bundle import Content, Head, NamedCheckpoint, checksums, open_bundle, write_bundle
from tests.lab.fragile_entry import write_fragile
from tests.support.cli_commands import Done, type_command, type_here
from tests.support.suite_runs import environment

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[3]
SETTINGS = ("optimizer.learning_rate=1e30", "output.checkpoint_every=1", "warm_start.num_steps=2")
ABSURD = [word for each in SETTINGS for word in ("--set", each)]


def git(directory: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=directory, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of this repository, with what is not committed yet."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    directory = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(directory))
    listed = git(ROOT, "ls-files", "--modified", "--others", "--exclude-standard", "-z")
    for name in set(listed.split("\0")) - {""}:
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, directory / name)
    return directory


def in_clone(directory: Path, *words: str) -> Done:
    """A command of the clone's own code, in the clone."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=directory,
        env=environment(PYTHONPATH=str(directory)),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_run_that_went_nan_is_taken_apart_in_a_fresh_clone(tmp_path: Path, clone: Path) -> None:
    stopped = type_command(tmp_path, "replay", "grpo_reverse_text", *ABSURD, "--break-on", "nan", "--out", "stopped")
    assert stopped.code == ExitCode.OK, stopped.stdout + stopped.stderr
    assert stopped.stdout.startswith("STOPPED  nan at step 1, ")
    (tmp_path / "stopped" / "step-1.rlb").rename(tmp_path / "nan.rlb")
    shutil.rmtree(tmp_path / "stopped")

    done = in_clone(clone, "reproduce", str(tmp_path / "nan.rlb"), "--trace-ops", "--json")

    assert done.code == ExitCode.OK, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["is_reproduced"], found["step"], found["first"]) == (True, 1, 1)
    (operations,) = found["operations"]
    assert operations["is_faithful"]
    made, origin = operations["non_finite"]["made_by"], operations["non_finite"]["origin"]
    assert operations["non_finite"]["kind"] == "nan"
    assert made["at"].startswith("rlcore/"), "a line of the clone's own code"
    assert any("nan" in value["layout"] for value in made["outputs"])
    assert not any("nan" in value["layout"] for value in made["inputs"])
    assert origin is None or not any("inf" in value["layout"] for value in origin["inputs"])
    assert str(clone) in json.dumps(found["runs"])


@pytest.mark.full
@pytest.mark.timeout(240)
def test_on_a_machine_that_computes_otherwise_it_is_said_why_and_how_far_apart(project: Path) -> None:
    """The other machine is a fingerprint that was changed, and bits that are moved by a key that may not matter."""
    assert type_command(project, "train", "fragile", "--out", "run").code == ExitCode.OK
    made = type_command(project, "reproduce", "run", "--step", "2", "--bundle", "here.rlb")
    assert made.code == ExitCode.OK, made.stdout + made.stderr
    here = open_bundle(project / "here.rlb")
    here.unpack(project / "parts")
    contents: dict[str, Content] = {name: project / "parts" / name for name in here.head.members}
    manifest = json.loads((project / "parts" / "manifest.json").read_text("utf-8"))
    manifest["fingerprint"]["numerics"]["processor"] = "another one"
    contents["manifest.json"] = json.dumps(manifest).encode()
    write_bundle(project / "there.rlb", replace(here.head, members=checksums(contents)), contents)

    same = type_command(project, "reproduce", "there.rlb")
    assert same.code == ExitCode.OK, "equal bits are equal, whatever the machines are"
    other = type_command(project, "reproduce", "there.rlb", "--set", "output.noise=1e-6")
    assert other.code == ExitCode.NOT_COMPARABLE, other.stdout + other.stderr
    assert "NOT COMPARABLE  first difference: step 2: the gradient of weights differs in " in other.stdout
    assert re.search(r"of 32 elements differ, at most .* apart", other.stdout)
    assert "note: bits cannot be equal if these differ: processor\n" in other.stdout


# --------------------------------------------------------------------------------------------- what is not run at all


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_fragile(tmp_path)
    (tmp_path / "step-000002").mkdir()
    return tmp_path


def bundle(path: Path, call: dict[str, object], checkpoint: NamedCheckpoint | None = None) -> Path:
    contents = {"call.json": json.dumps(call).encode()}
    write_bundle(path, Head(0, None if checkpoint is None else 2, checksums(contents), checkpoint), contents)
    open_bundle(path)
    return path


CALL: dict[str, object] = {"entry": "tests.lab.fragile_entry:run", "config": {}, "runtime_sections": [], "resume": None}


@pytest.mark.parametrize(
    ("call", "checkpoint", "said"),
    [
        ({**CALL, "entry": "shutil:rmtree"}, None, 'entry = "shutil:rmtree"'),
        ({**CALL, "entry": 7}, None, "its call.json does not name an entry"),
        (CALL, None, "no trace in"),
        (CALL, NamedCheckpoint("/nowhere/step-000002", "0" * 32), "/nowhere/step-000002, which is not there"),
        (CALL, NamedCheckpoint("./step-000002", "0" * 32), "step-000002, which is another one"),
    ],
)
def test_what_a_bundle_may_not_say_is_refused(
    project: Path, call: dict[str, object], checkpoint: NamedCheckpoint | None, said: str
) -> None:
    bundle(project / "a.rlb", call, checkpoint)
    words = ("--trust",) if checkpoint else ()
    done = type_here(project, "reproduce", "a.rlb", "--out", "out", *words)
    assert (done.code, said in done.stderr) == (ExitCode.USAGE_ERROR, True), done.stderr
    assert not (project / "out").exists()
