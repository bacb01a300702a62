"""The whole of `rlharness doctor`: on this machine, on one made sick, with children that hang, fail or cannot start."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.cli.doctor import fix_command
from harness.cli.main import main
from harness.doctor import probe
from harness.doctor.host import open_probes
from harness.process.children import Answer
from harness.process.invocation import Invocation
from harness.process.supervisor import process_tree
from tests.support.suite_runs import HARNESS, environment


@pytest.fixture
def dead_address() -> Iterator[str]:
    """An address of this host that nobody answers at, and nobody else can take meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This machine, without what the environment may say of it; in a directory of no project."""
    for name in [name for name in os.environ if name.startswith(("RAY_", "NCCL_", "GLOO_", "OMP_", "NVIDIA_"))]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and the JSON with its findings by their checks."""
    code = main(["doctor", "--json", *words])
    value = json.loads(capsys.readouterr().out)
    value["findings"] = {finding["check"]: finding for finding in value["findings"]}
    return code, value


@pytest.mark.full
def test_this_machine(plain_environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = plain_environment / "runpy.py"  # what a child would find, were its path not safe
    wrong.write_text("raise SystemExit('the wrong one')")
    code, value = doctor(capsys)
    broken = [finding for finding in value["findings"].values() if finding["severity"] == "broken"]
    assert code == value["exit_code"] == (ExitCode.TESTS_FAILED if broken else ExitCode.OK)
    assert {"driver", "TMPDIR", "network", "containment", "bits", "torch"} <= set(value["findings"])
    assert value["findings"]["TMPDIR"]["severity"] == "fine"
    assert "a lock took" in value["findings"]["TMPDIR"]["measured"]
    assert "the check failed" not in str(value)
    assert "the wrong one" not in str(value)
    assert list(plain_environment.iterdir()) == [wrong], "it leaves nothing"


@pytest.mark.full
def test_which_operations_keep_their_bits_is_told_where_it_is_asked_for(
    plain_environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    plain_environment.joinpath("torch.py").write_text("raise SystemExit('the wrong torch')")
    assert main(["doctor", "--json", "--numerics"]) in (ExitCode.OK, ExitCode.TESTS_FAILED)
    captured = capsys.readouterr()
    assert "checking torch's operations" in captured.err
    (numerics,) = [each for each in json.loads(captured.out)["findings"] if each["check"] == "numerics"]
    assert numerics["severity"] == "fine", numerics
    assert re.match(r"float32 on \w+: \w+ holds, rows keep their bits up to .*; bfloat16 on ", numerics["measured"])


@pytest.mark.full
def test_what_is_wrong_is_found_and_what_mends_it_mends_it(
    plain_environment: Path, dead_address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"RAY_ADDRESS": dead_address, "TMPDIR": "/nowhere", "NVIDIA_TF32_OVERRIDE": "1"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code, found = doctor(capsys)
    assert code == ExitCode.TESTS_FAILED
    severities = {check: finding["severity"] for check, finding in found["findings"].items()}
    assert (severities["RAY_ADDRESS"], severities["TMPDIR"]) == ("broken", "broken")
    assert severities["NVIDIA_TF32_OVERRIDE"] == "warning"
    assert main(["doctor", "--fix"]) == ExitCode.TESTS_FAILED
    lines = capsys.readouterr().out
    assert "unset RAY_ADDRESS" in lines.splitlines()
    assert "export TMPDIR=/tmp" in lines.splitlines()
    script = 'eval "$1"; shift; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", lines, *HARNESS, "doctor", "--json"],
        env=environment() | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    again = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert "RAY_ADDRESS" not in again
    assert again["TMPDIR"]["severity"] == "fine"
    assert "NVIDIA_TF32_OVERRIDE" not in again


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json", "--fix"], "--json and --fix"),
        (["--backend", "nccl"], "--backend without --distributed"),
        (["--numerics", "--distributed", "2"], "--numerics beside --distributed"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["doctor", *words]) == ExitCode.USAGE_ERROR
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.full
@pytest.mark.parametrize(("limit", "check"), [("-n 16", "open files"), ("-f 1", "file size")])
def test_limits_that_are_too_low_for_anything_are_findings(limit: str, check: str) -> None:
    words = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *HARNESS, "doctor", "--json"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert check in {each["check"] for each in json.loads(done.stdout)["findings"]}, done.stderr


WITHOUT_PROC = 'mount -t tmpfs tmpfs /proc; exec "$@"'


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("command", [["doctor"], ["run", "--gpus", "none"], ["replay", "--", "python", "x.py"]])
def test_without_proc_a_command_says_so_in_a_sentence(command: list[str], tmp_path: Path) -> None:
    words = ["unshare", "--mount", "sh", "-c", WITHOUT_PROC, "sh", *HARNESS, *command]
    done = subprocess.run(words, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stdout) == (ExitCode.USAGE_ERROR, "")
    assert done.stderr.startswith("error: /proc is not mounted, or cannot be read")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ((None, None), "rlharness doctor --fix"),
        ((2, None), "rlharness doctor --distributed 2 --fix"),
        ((4, "nccl"), "rlharness doctor --distributed 4 --backend nccl --fix"),
    ],
)
def test_what_mends_is_printed_by_the_examination_that_found_it(
    given: tuple[int | None, str | None], command: str
) -> None:
    assert fix_command(*given) == command


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_host_without_loopback(plain_environment: Path) -> None:
    words = ["unshare", "--net", *HARNESS, "doctor", "--json"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    network = next(finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "network")
    assert network["severity"] == "broken"
    assert network["remedy"] == "ip link set lo up"


# ---- children ----


def starts_a_child_and_hangs(path: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(path).write_text(f"{os.getpid()} {child.pid}")
    threading.Event().wait()


def ask(cwd: Path, *step: Any) -> Answer:
    with open_probes(Invocation(cwd, dict(os.environ))) as probes:
        (answer,) = probes.ask(2.0, step)
        return answer


@pytest.mark.full
def test_a_child_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    assert ask(tmp_path, starts_a_child_and_hangs, str(marker)) == Answer("late", "no answer within 2 s")
    left = [process for pid in marker.read_text().split() if (process := process_tree.read_process(int(pid)))]
    assert all(process.is_zombie for process in left), "an orphan may wait for whoever has adopted it"


def test_a_child_has_a_tmpdir_for_its_life_and_imports_nothing_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("argparse", "contextlib", "torch", "ray", "pydantic"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the checkout')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    directory = ask(tmp_path, tempfile.gettempdir).value
    assert not Path(directory).exists(), "the scratch root is gone"
    assert ask(tmp_path, probe.torch_build).kind == "ok"
    assert not Path(ask(tmp_path, os.getcwd).value).is_relative_to(tmp_path)


@pytest.mark.full
def test_an_interrupted_examination_ends_its_children(plain_environment: Path) -> None:
    code = (
        "import os, signal, sys, threading, time\nfrom pathlib import Path\n"
        "from harness.doctor import checks\n"
        "def look(host):\n"
        "    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "    host.ask(600, (time.sleep, 600))\n"
        "checks.CHECKS = (checks.Check('slow', look, 600),)\n"
        "from harness.cli.main import main\nsys.exit(main(['doctor']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (ExitCode.INTERRUPTED, "")
    assert done.stderr == "rlharness: interrupted by SIGTERM\n"
