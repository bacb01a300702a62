"""The signature of a call, and the key it is made with."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from harness.lab.experiments.call_signature import SIGNATURE, is_signed, sign_call
from harness.lab.experiments.entry_call import EntryCall, take_call

CALL = EntryCall("a:b", {"lr": 1e-3, "scale": float("inf"), "judge": {"api_key": "abc"}, "ö": ["x", None]}, ("judge",))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def run(tmp_path: Path, environ: dict[str, str]) -> Path:
    """The directory of a run, as its process has left it: without secrets."""
    directory = tmp_path / "run"
    directory.mkdir()
    CALL.write(directory)
    sign_call(directory, CALL, environ)
    take_call(directory)
    return directory


def read(run: Path) -> EntryCall:
    return EntryCall.parse((run / "call.json").read_bytes())


def test_a_call_is_known_as_this_users_own_however_it_is_spaced(run: Path, environ: dict[str, str]) -> None:
    assert is_signed(run, read(run), environ)
    (run / "call.json").write_text(json.dumps(json.loads((run / "call.json").read_text("utf-8")), sort_keys=True))
    assert is_signed(run, read(run), environ)
    assert (Path(environ["XDG_CACHE_HOME"]) / "rlharness" / "key").stat().st_mode & 0o777 == 0o600


def test_another_call_and_another_users_key_are_not_signed(run: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    call = read(run)
    for other in (
        replace(call, entry="a:c"),
        replace(call, config={**call.config, "lr": 1}),
        replace(call, runtime_sections=()),
        replace(call, resume={"run": "judge.a", "step": "judge.b"}),
        CALL,
    ):
        assert not is_signed(run, other, environ)
    assert not is_signed(run, call, {"XDG_CACHE_HOME": str(tmp_path / "another")})
    assert not is_signed(tmp_path, call, environ)
    (run / SIGNATURE).write_text("")
    assert not is_signed(run, call, environ)


@pytest.mark.parametrize("damage", ["cut", "open", "link", "gone", "directory"])
def test_a_key_that_is_lost_or_known_to_others_proves_nothing(run: Path, environ: dict[str, str], damage: str) -> None:
    key = Path(environ["XDG_CACHE_HOME"]) / "rlharness" / "key"
    match damage:
        case "cut":
            key.write_bytes(b"")
        case "open":
            key.chmod(0o644)
        case "link":
            key.rename(key.with_name("other"))
            key.symlink_to("other")
        case "gone":
            key.unlink()
        case "directory":
            key.unlink()
            key.mkdir()
    assert not is_signed(run, read(run), environ)
    sign_call(run, CALL, environ)  # whatever it does, it raises nothing


def test_first_runs_that_are_recorded_at_once_have_one_key(tmp_path: Path, environ: dict[str, str]) -> None:
    runs = [tmp_path / f"run-{number}" for number in range(16)]
    for run in runs:
        run.mkdir()
        CALL.write(run)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda run: sign_call(run, CALL, environ), runs))
    for run in runs:
        take_call(run)
        assert is_signed(run, read(run), environ)
    assert [each.name for each in (Path(environ["XDG_CACHE_HOME"]) / "rlharness").iterdir()] == ["key"]
