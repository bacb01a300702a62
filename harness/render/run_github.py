"""Output of a run of tests on GitHub Actions: annotations of failures and flaky files, and the summary of the job."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from harness.bits.exit_codes import ExitCode
from harness.bits.text import harmless, one_line
from harness.process.invocation import Invocation
from harness.render.console import at_most, stop_lines
from harness.render.github import append_to_summary, command, folded, plain, say_lines
from harness.render.run_text import closing_line, sections_of
from harness.render.run_words import Failure, exit_reason, list_failures, list_unmet, shown
from harness.runner.events import Event, RunFinished
from harness.runner.records.recorded_run import PAGE
from harness.runner.records.stats import RunState
from harness.runner.reruns.retries import flaky_tests
from harness.runner.units import Outcome, UnitResult, file_of

WORKSPACE_VARIABLE = "GITHUB_WORKSPACE"
MAX_ANNOTATIONS = 10
"""GitHub shows this many errors, and this many warnings, of a step."""
MAX_TEXTS = 100
"""Failures whose text the summary holds."""
MAX_TEXT_BYTES = 600_000
"""Bytes of all these texts together."""
MAX_LISTED = 50


class GithubReporter:
    """Writes the annotations and the summary of the job when the run has finished.

    From now until then, GitHub obeys no workflow command on `stream`, where the output of tests is printed. The
    annotations follow there: GitHub may read another stream first.
    """

    def __init__(self, job: Invocation, stream: TextIO) -> None:
        self._job = job
        self._stream = stream
        stop, self._resume = stop_lines()
        say_lines([stop], stream)

    def on_event(self, event: Event, state: RunState) -> None:
        """Write at the end."""
        if not isinstance(event, RunFinished):
            return
        failures = list_failures(state, event)
        self.close()
        say_lines(annotations(failures, state, event, self._job), self._stream)
        _summary("run", state, event, failures, self._job.environ)

    def close(self) -> None:
        """Have GitHub obey workflow commands again."""
        if resume := self._resume:
            self._resume = ""
            say_lines([resume], self._stream)


def summarize_merge(state: RunState, finished: RunFinished, environ: Mapping[str, str]) -> None:
    """Add the summary of merged runs to that of the job; their own jobs have annotated the failures."""
    _summary("merge", state, finished, list_failures(state, finished), environ)


def locate(job: Invocation, name: str, text: str = "") -> dict[str, str]:
    """Return file and line of a test or unit: the last line of its file that the text of its failure names.

    Without a line if it names none; empty for a unit that has no file in the repository.
    """
    path = file_of(name.partition("::")[0])
    root = Path(job.environ.get(WORKSPACE_VARIABLE) or job.cwd).resolve()
    for directory in (job.cwd, *job.cwd.parents) if path else ():  # pytest may have its root above
        with suppress(OSError, ValueError, RuntimeError):  # too long, with a null character, a loop of links
            file = (directory / path).resolve()
            if file.is_file() and file.is_relative_to(root) and harmless(str(file)) == str(file):
                lines = re.findall(rf"{re.escape(file.name)}(?::|\", line |, line )(\d+)", text)
                return {"file": file.relative_to(root).as_posix()} | ({"line": lines[-1]} if lines else {})
    return {}


def annotations(failures: Sequence[Failure], state: RunState, finished: RunFinished, job: Invocation) -> Iterator[str]:
    """Yield an error for each failure and a warning for each flaky file, as many as GitHub shows.

    A unit that was not run for lack of GPUs is an error where this decides the exit code, and a warning elsewhere.
    """
    flaky = state.with_outcome(Outcome.FLAKY)
    warnings = [Failure(each.unit.path, "flaky", "\n".join(_flaky_lines(each))) for each in flaky]
    unmet, is_error = list_unmet(state), finished.exit_code == ExitCode.UNITS_NOT_RUN
    yield from _limited("error", [*failures, *(unmet if is_error else [])], job)
    yield from _limited("warning", [*warnings, *([] if is_error else unmet)], job)


def _limited(kind: str, failures: Sequence[Failure], job: Invocation) -> Iterator[str]:
    num_shown = len(failures) if len(failures) <= MAX_ANNOTATIONS else MAX_ANNOTATIONS - 1
    for failure in failures[:num_shown]:
        location = locate(job, failure.name, failure.text)
        yield command(kind, "\n".join(failure.message()), title=failure.title, **location)
    if rest := failures[num_shown:]:
        text = "\n".join(at_most([each.title for each in rest], MAX_LISTED))
        yield command(kind, text, title=f"and {len(rest):,} more, listed in the summary of the job")


def _flaky_lines(result: UnitResult) -> list[str]:
    attempts = (f"{each.outcome.value}: {each.reason}".removesuffix(": ") for each in result.attempts)
    return [*flaky_tests(result), *attempts, result.reason]


def _summary(
    title: str, state: RunState, finished: RunFinished, failures: Sequence[Failure], environ: Mapping[str, str]
) -> None:
    """Add the summary of a run to that of the job: what failed, each below a title that opens it, and the lists."""
    words = {ExitCode.OK: "passed", ExitCode.TESTS_FAILED: "tests failed"}
    verdict = words.get(ExitCode(finished.exit_code)) or exit_reason(finished, state)
    closing = plain(one_line(closing_line(finished, state), 1000))
    head = f"### rlharness {title}: {plain(verdict or f'exit code {finished.exit_code}')}\n\n{closing}.\n\n"
    lines, num_left = list[str](), MAX_TEXT_BYTES
    for failure in failures[:MAX_TEXTS]:
        text = (shown(failure.text) or "\n".join(failure.message())).rstrip("\n")
        num_left -= len(text.encode("utf-8", "backslashreplace"))
        reason = f": {one_line(failure.reason, 150)}" if failure.reason else ""
        lines += folded(f"❌ {failure.title}{reason}", text.split("\n") if num_left > 0 else ["left out"])
    for name, _, found in sections_of(finished, state):
        lines += folded(f"{name} ({len(found):,})", at_most(found, MAX_LISTED)) if found else []
    page = Path(state.started.directory, PAGE) if state.started and state.started.directory else None
    lines += [f"Page of the run: <code>{plain(str(page))}</code>"] if page and page.is_file() else []
    append_to_summary("\n".join([head, *lines]), environ, short=f"{head}The full summary exceeds the size limit.\n")
