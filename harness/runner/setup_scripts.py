"""Setup scripts: commands that run once, just before the first unit that needs them, on leases like those of units.

    a unit fits ──a script that it needs has not run──▶ it is held, and the script is queued first of all
    the script ends ──passed──▶ its variables go to the units that need it, and what it held is queued again
                    └─failed──▶ the units that need it are not run, and the reason is kept

One script runs at a time. It has the containment, the limits and the checked GPUs of a unit that is a command.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from harness.core.command import MANAGED, SetupRule
from harness.core.regular_file import read_text
from harness.core.replaced_file import write_replacing
from harness.runner import events
from harness.runner.attempts.unit_run import Post, UnitRunner
from harness.runner.reruns.retries import Retries
from harness.runner.schedule.first_fit import Job
from harness.runner.schedule.leases import Lease
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult, files_of

ENV_FILE = "RLHARNESS_ENV"
"""Variable with the path of the file to which a script writes lines NAME=VALUE."""
SETUP = "setup"
"""Name of the directory of all scripts in the directory of a run."""
PREFIX = "setup:"
"""Beginning of the path under which the events of a run name a script."""
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def wanted_by(rule: SetupRule, units: Sequence[Unit]) -> list[Unit]:
    """Return the units that need a script: those that can run, and one of whose files matches one of its patterns."""
    from pathspec import PathSpec

    spec = PathSpec.from_lines("gitignore", rule.globs)
    return [unit for unit in units if unit.can_run and any(map(spec.match_file, files_of(unit)))]


def parse_env(text: str) -> tuple[dict[str, str], str]:
    """Return the variables in the text of an environment file, and the first fault in it; no fault is empty text."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\0" in line:
            return {}, f"line {number} of ${ENV_FILE} is not NAME=VALUE"
        if match[1] in MANAGED:
            return {}, f"line {number} of ${ENV_FILE} sets {match[1]}, which rlharness sets itself"
        found[match[1]] = match[2]
    return found, ""


@dataclass(slots=True)
class ScriptRunner(UnitRunner):
    """Carries out one script as `UnitRunner` does a command, and posts what a run records of a script."""

    result: UnitResult | None = None
    """Result of the script; None before it has ended, and if its lease was refused."""

    def directory(self, number: int) -> Path:
        """Where the script keeps its files."""
        return self.run_directory

    @classmethod
    def beside(cls, runner: UnitRunner, script: Unit, directory: Path, env_file: Path) -> "ScriptRunner":
        """Return a runner with what the runner of the units has, which posts to the same queue."""
        runner.memory_sampler()  # one for all, since scripts and units may share a GPU
        shared = {each.name: getattr(runner, each.name) for each in fields(UnitRunner)}
        own = {"run_directory": directory, "followed": {}, "retries": Retries(0), "check_leaning": None}
        script_runner = cls(**shared | own | {"setup_env": {script.path: {ENV_FILE: str(env_file)}}})
        script_runner.post = script_runner.translating(runner.post)
        return script_runner

    def translating(self, post: Post) -> Post:
        """Return what posts the events of a script for those of a unit."""

        def translate(event: events.Event) -> None:
            match event:
                case events.AttemptStarted():
                    post(events.SetupStarted(event.t, event.path, event.gpu_ids, event.directory))
                case events.LeaseReturned() | events.GpuQuarantined():
                    post(event)
                case events.UnitFinished():
                    self.result = event.result

        return translate


@dataclass(slots=True)
class SetupScripts:
    """The scripts of one run, and the units that wait for them."""

    rules: Sequence[SetupRule]
    units: Sequence[Unit]
    """All units of the run; the job of the first script has the number after theirs."""
    env: dict[str, dict[str, str]]
    """Variables by the path of the unit, which scripts add to."""
    _needing: list[frozenset[str]] = field(init=False)
    """Paths of the units that need each script."""
    _errors: dict[int, str] = field(default_factory=dict)
    """Why a script has failed, by its index among the rules; empty for one that passed."""
    _held: list[Job] = field(default_factory=list)
    _queued: int | None = None
    """Index of the script that is queued or runs; None without one."""
    _runner: ScriptRunner | None = None

    def __post_init__(self) -> None:
        self._needing = [frozenset(unit.path for unit in wanted_by(rule, self.units)) for rule in self.rules]

    def is_script(self, job: Job) -> bool:
        """Return whether a job of the queue is a script."""
        return job.index >= len(self.units)

    def has_to_wait(self, unit: Unit) -> bool:
        """Return whether a script that the unit needs has not ended, and none has failed."""
        return not self.error(unit) and bool(self._missing(unit.path))

    def error(self, unit: Unit) -> str:
        """Return why a script that the unit needs has failed; empty if none has."""
        reasons = (why for index, why in self._errors.items() if unit.path in self._needing[index])
        return next(filter(None, reasons), "")

    def hold(self, job: Job) -> Job | None:
        """Hold the job of a unit; return the job of the script to queue for it, if none is queued or runs."""
        self._held.append(job)
        return self._next()

    def end(self, path: str, why: str) -> tuple[list[Job], Job | None]:
        """Return the jobs that a script has held, whether it passed or failed (`why`), and the next script to queue."""
        index = next(index for index, rule in enumerate(self.rules) if path == PREFIX + rule.name)
        self._errors[index] = why
        self._queued = self._runner = None
        ready = [job for job in self._held if not self.has_to_wait(self.units[job.index])]
        self._held = [job for job in self._held if job not in ready]
        return ready, self._next()

    def drain(self) -> list[Job]:
        """Take out every job that is held: the run was cancelled."""
        held, self._held = self._held, []
        return held

    def cancel(self, *, kill: bool) -> None:
        """End the script that runs; `kill` at once."""
        if self._runner is not None and self._queued is not None:
            number = len(self.units) + self._queued
            if kill:
                self._runner.kill(number)
            else:
                self._runner.cancel(number)

    def script(self, job: Job) -> Unit:
        """Return a script as a unit."""
        rule = self.rules[job.index - len(self.units)]
        return Unit(PREFIX + rule.name, rule.need, NeedSource.TABLE, rule.timeout_s, command=rule.command)

    async def run(self, job: Job, lease: Lease, runner: UnitRunner) -> None:
        """Run a script; its last event is its SetupFinished."""
        script, index = self.script(job), job.index - len(self.units)
        rule = self.rules[index]
        directory, env_file = runner.run_directory / SETUP / rule.name, runner.scratch / f"setup_{index}.env"
        self._runner = ScriptRunner.beside(runner, script, directory, env_file)
        variables: dict[str, str] = {}
        try:
            write_replacing(env_file, "")
            await self._runner.run(job.index, script, lease)
            if self._runner.result is None:  # its GPUs were not fit for use
                runner.post(events.SetupFinished(runner.t(), script.path, is_refused=True))
                return
            why = _why_failed(self._runner.result)
            if not why:
                variables, why = parse_env(await asyncio.to_thread(read_text, env_file))
        except (OSError, ValueError) as error:
            why = " ".join(str(error).split())
        if why:
            why = f"the setup script {rule.name} failed: {why}; its output: {directory / 'output.log'}"
        for path in self._needing[index]:
            self.env[path] = {**self.env.get(path, {}), **variables}
        runner.post(events.SetupFinished(runner.t(), script.path, why))

    def _missing(self, path: str) -> list[int]:
        return [index for index, paths in enumerate(self._needing) if path in paths and index not in self._errors]

    def _next(self) -> Job | None:
        """Return the job of the first script that a held unit needs; None if a script is queued or runs."""
        missing = min(
            (index for job in self._held for index in self._missing(self.units[job.index].path)), default=None
        )
        if self._queued is not None or missing is None:
            return None
        self._queued = missing
        return Job(len(self.units) + missing, self.rules[missing].need, 0.0)


def _why_failed(result: UnitResult) -> str:
    return "" if result.outcome is Outcome.PASSED else result.reason or result.outcome.value
