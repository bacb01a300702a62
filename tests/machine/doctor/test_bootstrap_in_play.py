"""Which remedies are tried, who is waited for and what is said meanwhile, over scripted attempts."""

import asyncio
import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.bits.findings import Severity
from harness.doctor import distributed
from harness.doctor.children import Children, module_command
from harness.doctor.distributed import Bootstrap, find_layer
from harness.machine.findings import MachineFinding
from tests.support.scripted_attempts import Script, ScriptedAttempts

KEYS = ("store", "gloo", "collective")
TAKEN = "DistNetworkError: failed to listen. port: 29500, name: EADDRINUSE"
FOR_EVER = 10**9
GIVE_UP_S = 30.0
Scripts = Callable[[int], Script]


def start(key: str) -> dict[str, Any]:
    return {"k": "start", "id": key, "timeout_s": 13.0}


def end(key: str, reason: str = "") -> dict[str, Any]:
    return {"k": "end", "id": key, "outcome": "failed" if reason else "passed", "duration_s": 0.1, "reason": reason}


COLLECTED: dict[str, Any] = {"k": "collected", "need": {"gpus": 0}, "nodeids": list(KEYS)}
WHOLE = (COLLECTED, *(line for key in KEYS for line in (start(key), end(key))), {"k": "finish", "exit": 0})
WELL = Script(report=WHOLE)


def fails(reason: str) -> Script:
    """A rank that fails at the store."""
    return Script(report=(COLLECTED, start("store"), end("store", reason)), exit_code=1)


def hangs(*report: dict[str, Any]) -> Script:
    """A rank that stays after its last report."""
    return Script(report=(*report, {"k": "finish", "exit": 0}), num_steps=FOR_EVER)


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "LAST_WORD_S", 0.01)


def walk(
    script: Scripts, directory: Path, environ: Mapping[str, str]
) -> tuple[list[MachineFinding], list[str], list[str]]:
    """The findings of two ranks, what was said, and the environment and address of each rank, a line each."""
    said: list[str] = []
    attempts = ScriptedAttempts(script)
    finding = find_layer(Bootstrap(2, "gloo", environ, Children(attempts, directory), said.append))
    found = asyncio.run(asyncio.wait_for(finding, GIVE_UP_S))
    walked = [
        f"{spec.env.get('MASTER_ADDR')} {spec.env.get('MASTER_PORT')} {json.loads(spec.argv[-1])['address']}"
        for _, spec in sorted(attempts.specs.items())
    ]
    assert found[-1].check == "network"
    return [each for each in found if each.check != "network"], said, walked


def test_the_one_that_waits_is_ended_soon_after_the_one_that_failed(tmp_path: Path) -> None:
    def script(number: int) -> Script:
        return {0: fails(TAKEN), 1: hangs(COLLECTED, start("store"))}.get(number, WELL)

    environ = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    (store,), said, walked = walk(script, tmp_path, environ)
    assert (store.check, store.severity) == ("store", Severity.BROKEN)
    assert "EADDRINUSE" in store.measured
    assert store.measured.endswith("rank 1 still waited there (2 ranks)")
    assert (store.unsets, store.exports) == (("MASTER_PORT",), {})
    assert store.remedy == "unset MASTER_PORT   # tried: it passes this layer"
    assert said == [f"store: {store.measured}", "store: trying unset MASTER_PORT"]
    assert walked[:2] == ["localhost 29500 localhost:29500"] * 2
    (mended,) = set(walked[2:])  # the two ranks of the second walk agree on a port
    assert mended.startswith("localhost None localhost:")
    assert mended != "localhost None localhost:29500"


def test_who_dies_in_a_layer_has_not_hung_there(tmp_path: Path) -> None:
    def script(number: int) -> Script:
        dies = Script(report=(COLLECTED, start("store"), end("store"), start("gloo"), {"k": "odd"}), exit_code=139)
        return dies if number == 0 else hangs(COLLECTED, start("store"), end("store"), start("gloo"))

    (store, gloo), _, _ = walk(script, tmp_path, {"GLOO_SOCKET_IFNAME": "lo"})
    assert store.severity is Severity.FINE
    does = "connecting every pair of ranks through Gloo"
    assert gloo.measured == f"rank 0 failed while {does}: it exited with 139; rank 1 still waited there (2 ranks)"


def test_a_rank_whose_others_have_not_failed_is_left_its_time(tmp_path: Path) -> None:
    steps = iter([Script(report=WHOLE), Script(report=WHOLE, num_steps=5000)])
    found, said, _ = walk(lambda number: next(steps), tmp_path, {})
    assert [(finding.check, finding.severity) for finding in found] == [
        ("store", Severity.FINE),
        ("Gloo", Severity.FINE),
        ("first collective", Severity.FINE),
    ]
    assert said == []


@pytest.mark.parametrize(
    ("environ", "tried"),
    [
        ({}, []),
        ({"MASTER_ADDR": "127.0.0.1"}, []),
        ({"MASTER_ADDR": "beta"}, ["export MASTER_ADDR=127.0.0.1"]),
        ({"MASTER_PORT": "29500"}, ["unset MASTER_PORT"]),
        (
            {"MASTER_ADDR": "beta", "MASTER_PORT": "29500"},
            ["unset MASTER_PORT", "export MASTER_ADDR=127.0.0.1", "export MASTER_ADDR=127.0.0.1; unset MASTER_PORT"],
        ),
    ],
)
def test_only_what_would_change_something_is_tried(environ: dict[str, str], tried: list[str], tmp_path: Path) -> None:
    (store,), said, _ = walk(lambda number: fails("RuntimeError: no route"), tmp_path, environ)
    assert said[1:] == [f"store: trying {settings}" for settings in tried]
    assert (store.exports, store.unsets) == ({}, ()), "nothing has helped, so nothing is recommended"
    assert "MASTER_ADDR" in store.remedy


def test_nothing_is_imported_from_the_directory_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout, own = tmp_path / "checkout", tmp_path / "own"
    checkout.mkdir()
    own.mkdir()
    for name in ("argparse", "contextlib", "torch", "ray", "pydantic"):
        (checkout / f"{name}.py").write_text(f"raise SystemExit('{name} of the checkout')\n")
    monkeypatch.chdir(checkout)
    attempts = ScriptedAttempts(lambda number: WELL)
    asyncio.run(find_layer(Bootstrap(2, "gloo", {}, Children(attempts, own))))
    assert len(attempts.specs) == 2
    for spec in attempts.specs.values():
        assert Path(spec.cwd).is_relative_to(own), "Ray's workers import from the directory that it is started in"
    argv = (*module_command("harness.doctor.probe", "torch"),)
    done = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_says_whom_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "PATIENCE_S", 0.02)
    said: list[str] = []

    def script(number: int) -> Script:
        return hangs(COLLECTED, start("gloo")) if number == 0 else hangs()

    async def until_it_was_said() -> None:
        attempts = ScriptedAttempts(script)
        walking = asyncio.ensure_future(find_layer(Bootstrap(2, "gloo", {}, Children(attempts, tmp_path), said.append)))
        async with asyncio.timeout(GIVE_UP_S):
            while len(said) < 4:
                await asyncio.sleep(0)
        walking.cancel()
        await asyncio.wait([walking])

    asyncio.run(until_it_was_said())
    gloo = "connecting every pair of ranks through Gloo, which may take 13 s here"
    assert said[:3] == [
        f"rank 0: not done after 0.02 s: {gloo}",
        "rank 1: not done after 0.02 s: importing what it needs, which may take 90 s",
        f"rank 0: not done after 0.04 s: {gloo}",
    ]
