"""The process of a scenario's run: calls the entry that the scenario names, with a recorder.

    run.json, call.json ─▶ entry(config, level=, directory=, recorder=) ─▶ exit code

An error with `what`, `legal` and `remedy`, or for lack of disk, files or memory, is the user's to correct. Before the
first step it is handed to the launcher, which reports it as its own; afterwards it is printed here, and what was
recorded stays. Any other error is a bug, and shows its traceback. What the entry takes from elsewhere is not watched.
That the entry has returned is reported: for a process that exits with 0, only this excludes an end by sys.exit,
os._exit or exec in the middle.
"""

import difflib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.bits.errors import TraceError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.process.exhaustion import exhaustion_of
from harness.recording import open_recorder
from harness.recording.run_spec import INTERRUPTED, Rejection, RunEnded, take_call

FAILED = 1


def main() -> int:
    """Call the entry; the exit code of this process."""
    try:
        return _recorded()
    except KeyboardInterrupt:
        print("rlharness: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # torch cannot be loaded for lack of memory, or a refusal not be written to a full disk
        if (exhausted := exhaustion_of(error)) is None:
            raise
        print(f"error: {exhausted}", file=sys.stderr)
        return FAILED


def _recorded() -> int:
    try:
        recorder = open_recorder()
    except UsageError as error:  # of a watcher that cannot be made
        return _refuse(error)
    from harness.recording.automatic import active_log  # not before torch, with whose import a recording begins
    from harness.recording.recorder import NullRecorder

    log = active_log()
    if log is None or isinstance(recorder, NullRecorder):
        print("rlharness: nothing records here: rlharness train and rlharness replay start this", file=sys.stderr)
        return ExitCode.USAGE_ERROR
    orders = log.orders

    def has_begun() -> bool:
        return log.rank is not None or not log.is_recording or recorder.step is not None

    def break_off(error: BaseException | None) -> None:
        log.keep_unfinished(recorder.break_off(error))

    try:
        code = call_entry(Path(orders.directory), orders.level, recorder, has_begun=has_begun, told=break_off)
    except BaseException as error:
        break_off(error)
        raise
    break_off(None)
    if code == ExitCode.OK:
        log.note_return()
    return code


def _refuse(error: UsageError) -> int:
    from harness.recording.automatic import active_log

    log = active_log()
    assert log is not None, "watchers are made where something is recorded"
    Rejection(error.what, error.legal, error.remedy).write(Path(log.orders.directory))
    return ExitCode.USAGE_ERROR


def call_entry(
    directory: Path,
    level: str,
    recorder: Any,
    *,
    has_begun: Callable[[], bool],
    told: Callable[[BaseException], None] = lambda error: None,
) -> int:
    """Call the entry of the call in a directory; the exit code.

    `has_begun` says whether a step has begun; `told` is given an error that has ended it later, and is the user's.
    """
    try:
        call = take_call(directory)
        load_entry(call.entry)(call.config, level=level, directory=directory, recorder=recorder)
    except RunEnded:
        return ExitCode.OK
    except Exception as error:  # whatever an entry raises: by its attributes it is told from a bug
        if (refusal := as_rejection(error)) is None:
            raise
        if not has_begun():
            refusal.write(directory)
            return ExitCode.USAGE_ERROR
        told(error)
        print(f"error: {refusal.error()}", file=sys.stderr)
        return FAILED
    return ExitCode.OK


def load_entry(name: str) -> Callable[..., Any]:
    """The function of "module:function"; UsageError where there is none."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        is_own = module_name == error.name or module_name.startswith(f"{error.name}.")
        remedy = "check the spelling" if is_own else "install its package: pip install 'rlharness[engine]'"
        raise UsageError(f"entry {name}: there is no module {error.name}", remedy=remedy) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        near = difflib.get_close_matches(function_name, dir(module), n=3)
        what = f"entry {name}: {module_name} has no function {function_name}"
        raise UsageError(what, legal=", ".join(near) or "an existing function")
    return function  # type: ignore[no-any-return]


def as_rejection(error: Exception) -> Rejection | None:
    """What an error says that is the user's to mend; None for a bug, and for a recorder that was called wrongly."""
    texts = [getattr(error, name, None) for name in ("what", "legal", "remedy")]
    if isinstance(error, TraceError):
        return None
    if not all(isinstance(text, str) for text in texts):
        exhausted = exhaustion_of(error)
        return Rejection(exhausted.what, exhausted.legal, exhausted.remedy) if exhausted else None
    return Rejection(*map(str, texts))


if __name__ == "__main__":
    sys.exit(main())
