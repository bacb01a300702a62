"""What a run records, the recorders that take it, and what a run writes and shows.

    record = Record(recorder)
    record.begin_step(7)
    record("loss", "policy", loss)
    record.all("backward", gradients)
    record.end_step(loss=loss, reward_mean=reward)

rlcore knows the protocol of a recorder and no recorder: the harness brings one, tests bring their own. Values are
recorded in canonical order (samples by prompt and number, microbatches by number, parameters as the model names them):
what is recorded twice under one phase and name counts as its first and second occurrence.

Phases of a record: rollout, reward, reference, advantage, forward, loss, backward, optimizer, sync.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, runtime_checkable

import torch
from tqdm import tqdm

from rlcore.config import OutputSection, RunConfig

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from rlcore.train import Evaluation

Named = Iterable[tuple[str, Any]]
TIMED = ("rollout", "reward", "reference", "update", "optimizer", "sync", "evaluation")
"""Parts of a run whose time is taken, in the order of a step. `update` is forward, loss and backward."""
MAX_WIDTH = 32
"""Characters of a column of text in a table."""


class Recorder(Protocol):
    """Takes the steps of one process."""

    def begin_step(self, step: int) -> None:
        """Begin a step."""

    def record(self, phase: str, name: str, value: Any) -> None:
        """A tensor, a number, text, bytes, or a list of numbers or texts; looked at now, left as it is."""

    def end_step(self, **values: Any) -> None:
        """End the step; `values` are those of the curve."""


@runtime_checkable
class BatchRecorder(Recorder, Protocol):
    """Takes many values at once: of values on a GPU, their digests come to the host together."""

    def record_all(self, phase: str, values: Named) -> None:
        """Record named values as `record` does each; goes through all of them, in order."""


class PartRecorder(Recorder, Protocol):
    """Takes the steps of one of several processes that record together."""

    def close(self) -> None:
        """End the record in order; without it, the record of this process counts as cut off."""


@runtime_checkable
class SharedRecorder(Recorder, Protocol):
    """Takes the steps of several processes: one whose models train in other processes needs it."""

    def share(self, num_others: int) -> Sequence[Callable[[], PartRecorder]]:
        """Record together with that many other processes; return what each of them calls to open its recorder.

        The functions can be pickled. It is called before the first step.
        """


@runtime_checkable
class DescribedRecorder(Recorder, Protocol):
    """Keeps beside its steps what a run is made of."""

    def describe(self, content: Mapping[str, str]) -> None:
        """Take digests by name, before the first step: see `rlcore.data.content.content_of`."""


class NullRecorder:
    """A recorder that discards every value."""

    def begin_step(self, step: int) -> None:
        """Nothing."""

    def record(self, phase: str, name: str, value: Any) -> None:
        """Nothing."""

    def end_step(self, **values: Any) -> None:
        """Nothing."""

    def share(self, num_others: int) -> Sequence[Callable[[], PartRecorder]]:
        """Let no other process record either."""
        return [NullRecorder] * num_others

    def close(self) -> None:
        """Nothing."""


class Record:
    """The record of one process: it takes values while a step lasts, and drops those of the time between steps."""

    def __init__(self, recorder: Recorder, *, own: Callable[[Named], Named] = iter) -> None:
        """Record into `recorder`; of tensors that several ranks hold, `own` yields those that this one records."""
        self._recorder, self._own = recorder, own
        self.is_paused = True
        """Whether values are dropped: during a warm start, and between steps."""

    def begin_step(self, step: int) -> None:
        """Begin a step."""
        self.is_paused = False
        self._recorder.begin_step(step)

    def end_step(self, **curve: float) -> None:
        """End the step with its values of the curve."""
        self._recorder.end_step(**curve)
        self.is_paused = True

    def __call__(self, phase: str, name: str, value: Any) -> None:
        """Record a value."""
        if not self.is_paused:
            self._recorder.record(phase, name, value)

    def all(self, phase: str, named: Named) -> None:
        """Record several values of a phase, with one wait for a GPU; every rank goes through all of them."""
        if self.is_paused:
            return
        if isinstance(self._recorder, BatchRecorder):
            self._recorder.record_all(phase, self._own(named))
        else:
            for name, value in self._own(named):
                self._recorder.record(phase, name, value)


# ------------------------------------------------------------------------------------------------- metrics and time


def mean(values: Iterable[float]) -> float:
    """Return the mean of at least one value, correctly rounded, so that it does not depend on their order."""
    listed = list(values)
    if special := {value for value in listed if not math.isfinite(value)}:
        return special.pop() if len(special) == 1 else math.nan
    try:
        return math.fsum(listed) / len(listed)
    except OverflowError:  # a sum of the first few is too large
        return float(sum(map(Fraction, listed)) / len(listed))


class Clock:
    """Seconds and peak memory of the phases of a step. The only clock of a run.

    `device` is the model's. Of a GPU, memory is that GPU's, and a phase ends when the GPU has done what was asked of it
    in the phase. A run on a CPU asks for no GPU, whatever its machine has.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._step: dict[str, tuple[float, float]] = {}
        """Seconds and peak of each phase."""
        self._run: dict[str, tuple[float, float]] = {}
        """The same of the whole run."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measure a phase; one that comes twice adds its seconds, and keeps the higher peak."""
        self._wait()
        self._forget_peak()
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            seconds, peak_gb = time.perf_counter() - began_s, self._peak()
            for measured in (self._step, self._run):
                before_s, before_gb = measured.get(name, (0.0, 0.0))
                measured[name] = before_s + seconds, max(before_gb, peak_gb)

    def take(self) -> dict[str, float]:
        """Return `seconds/NAME` and `memory_gb/NAME` of the step, and begin again."""
        step, self._step = self._step, {}
        seconds = {f"seconds/{name}": seconds for name, (seconds, _) in step.items()}
        return seconds | {f"memory_gb/{name}": peak_gb for name, (_, peak_gb) in step.items()}

    def lines(self) -> list[str]:
        """Return a table of the run until now: seconds, their share, and peak memory of each phase."""
        if not self._run:
            return []
        total = sum(seconds for seconds, _ in self._run.values())
        rows = [(name, *self._run[name]) for name in TIMED if name in self._run]
        rows.append(("total", total, max(peak_gb for _, peak_gb in self._run.values())))
        return [
            f"{'phase':<10}  {'time':>9}  {'share':>6}  {'peak memory':>11}",
            *(
                f"{name:<10}  {seconds:>7.2f} s  {seconds / total:>6.1%}  {peak_gb:>8.2f} GB"
                for name, seconds, peak_gb in rows
            ),
        ]

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _forget_peak(self) -> None:
        """Reset the peak to the present use; where the kernel does not allow it, peaks are those of the run."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def _peak(self) -> float:
        """Return the peak of a GPU's memory in GB, or of this process's on a CPU."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / 1e9
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM:")), 0.0)


# ---------------------------------------------------------------------------------------- what a run writes and shows


class RunLog:
    """The files of a run, each made with its first line; and its lines on the terminal.

    metrics.jsonl       {"step": 3, "reward_mean": 0.71, "seconds/rollout": 0.02, ...}
    completions.jsonl   a line for each completion that was shown
    tensorboard/        the same numbers
    """

    def __init__(self, directory: Path, section: OutputSection, *, stream: TextIO | None = None) -> None:
        self.directory = directory
        """Directory of the run."""
        self._section, self._stream = section, stream or sys.stderr
        self._files: dict[str, TextIO] = {}
        self._board: SummaryWriter | None = None
        self._bar: Any = None
        self._phase, self._num_steps, self._done = "", 1, 0
        self._last: dict[str, int] = {}  # the last step of each kind of line

    def phase(self, name: str, num_steps: int, done: int = 0) -> None:
        """Count steps of this phase from here on; the bar before is closed."""
        self._close_bar()
        self._phase, self._num_steps, self._done = name, num_steps, done
        if self._section.shows_progress and self._stream.isatty():
            self._bar = tqdm(total=num_steps, initial=done, desc=name, unit="step", file=self._stream, leave=True)

    def advance(self, **shown: float) -> None:
        """Move the bar by a step, or where there is no terminal, say a line for every tenth part of the steps.

        Steps are numbered from 0, as in the records.
        """
        self._done += 1
        values = {name: f"{value:.3g}" for name, value in shown.items()}
        tenths = [done * 10 // self._num_steps for done in (self._done - 1, self._done)]
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)
            self._bar.update()
        elif self._section.shows_progress and tenths[0] < tenths[1]:
            told = ", ".join(map("=".join, values.items()))
            self.say(f"{self._phase}: step {self._done - 1} ({self._done} of {self._num_steps}), {told}")

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step, unless it is made again after a restart, and move the bar."""
        if self._is_new("step", step):
            self._numbers(step, values)
        self.advance(reward=values.get("reward_mean", math.nan), loss=values.get("loss", math.nan))

    def evaluation(self, step: int, found: "Evaluation") -> None:
        """Write the numbers of an evaluation and some of its completions, unless it is made again after a restart."""
        if not self._is_new("evaluation", step):
            return
        values = {
            "evaluation/reward_mean": found.reward_mean,
            "evaluation/completion_length": mean([float(len(each.loss_tokens)) for each in found.trajectories]),
            "evaluation/truncated": mean([float(each.is_truncated) for each in found.trajectories]),
        }
        by_name = found.scores.by_function
        means = {name: [each for each in column if each is not None] for name, column in by_name.items()}
        named = {name: mean(given) for name, given in means.items() if given} if len(by_name) > 1 else {}
        told = {f"rewards/{name}": value for name, value in named.items()}
        told |= (passes := {f"pass@{k}": value for k, value in found.pass_at.items()})
        self._numbers(step, values | {f"evaluation/{name}": value for name, value in told.items()})
        shown = list(zip(found.trajectories, found.scores.rewards, strict=True))[: self._section.num_shown]
        rows = [("prompt", "completion", "answer", "reward")]
        for trajectory, reward in shown:
            prompt, text = trajectory.request.prompt, trajectory.completion_text
            answer = prompt.columns.get("answer", "")
            line = {"prompt": prompt.text, "completion": text, "answer": answer, "reward": reward}
            self._write("completions.jsonl", {"step": step, **line, "stop_reason": trajectory.stop_reason.value})
            rows.append((prompt.text, text, str(answer), "-" if reward is None else f"{reward:.3f}"))
        when = f"after step {step - 1}" if step else "before step 0"
        parts = f" ({', '.join(f'{name} {value:.3f}' for name, value in (named | passes).items())})" if told else ""
        num_prompts = len({each.request.prompt.id for each in found.trajectories})
        self.say(f"{when}: held-out reward {found.reward_mean:.3f}{parts} over {num_prompts} prompts")
        for row in table(rows) if shown else ():
            self.say(row)

    def say(self, line: str) -> None:
        """Write a line on the terminal, above the bar."""
        tqdm.write(line, file=self._stream)

    def close(self) -> None:
        """Have everything on the disk."""
        self._close_bar()
        for file in self._files.values():
            file.close()
        if self._board is not None:
            self._board.close()

    def _is_new(self, kind: str, step: int) -> bool:
        """Whether a line of this kind has not been written for the step, or for a later one."""
        if step <= self._last.get(kind, -1):
            return False
        self._last[kind] = step
        return True

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _numbers(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._write("metrics.jsonl", {"step": step, **finite})
        if not self._section.tensorboard:
            return
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.directory / "tensorboard"))
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def _write(self, name: str, values: Mapping[str, object]) -> None:
        if name not in self._files:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._files[name] = (self.directory / name).open("a", encoding="utf-8")
        file = self._files[name]
        file.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns of text, each cell cut to MAX_WIDTH."""
    escaped = [[cell.replace("\n", "\\n") for cell in row] for row in rows]
    cut = [[cell if len(cell) <= MAX_WIDTH else cell[: MAX_WIDTH - 1] + "…" for cell in row] for row in escaped]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut
    ]


def announcement(config: RunConfig, *, level: str, num_parameters: int, num_unused: int = 0) -> str:
    """Return what a run is going to do, a line each for its model, warm start, training and deployment.

    `num_unused` are the rows of the task's file that are neither trained on nor held out.
    """

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'' if number == 1 else 's'}"

    model, warm, training, output = config.model, config.warm_start, config.training, config.output
    stages, deployment = config.sampling.two_stage, config.deployment
    drawn = f"a new {model.family} model, weights drawn from seed {config.seed}"
    source = f"the checkpoint {model.path}" if model.path else drawn
    lines = {"model": f"{source}, {num_parameters:,} parameters, {model.dtype} on {model.device}"}
    if model.lora is not None:
        lines["adapters"] = f"rank {model.lora.rank} on {', '.join(model.lora.target_modules)}; all else is frozen"

    if num_unused:
        left = f"{count(num_unused, 'row')} of {config.task.path} are neither trained on nor held out"
        lines["prompts"] = f"{left} (task.num_prompts, task.num_heldout)"
    if output.resume:
        lines["warm start"] = "none, since the run is resumed"
    elif not warm.num_steps:
        lines["warm start"] = "none; warm_start.num_steps=N asks for one" if model.path else "none"
    else:
        up_to, until = "", ""
        if warm.target_reward is not None:
            up_to, until = "up to ", f", until the reward is {warm.target_reward:g}"
        lines["warm start"] = (
            f"{up_to}{count(warm.num_steps, 'supervised step')} on the column `answer`,"
            f" {count(warm.batch_size, 'prompt')} each, learning rate {warm.learning_rate:g}{until}"
            + (". They change the checkpoint's weights" if model.path and not model.lora else "")
        )

    completions = count(training.group_size, "completion" if stages is None else "reasoning")
    parts = [f"{count(training.num_steps, 'step')} of {config.algorithm.name.upper()}"]
    parts.append(f"{count(training.prompts_per_step, 'prompt')} of {completions} each")
    if stages is not None:
        parts.append(f"up to {stages.num_beams} items per reasoning")
    parts += [f"learning rate {config.optimizer.learning_rate:g}", f"level {level}"]
    if output.resume:
        at = "" if output.resume_step is None else f" at step {output.resume_step} or the last before it"
        parts.append(f"resumed from {output.resume}{at}")
    lines["training"] = ", ".join(parts)

    ranks = count(deployment.num_ranks, "rank")
    weights = {
        "none": "all weights on each",
        "full": "each with a shard of the weights",
        "hybrid": f"{deployment.num_copies} copies of the weights, sharded",
    }
    if deployment.backend == "ray":
        lines["deployment"] = f"{ranks} in actors of Ray, {weights[deployment.sharding]}"
    elif deployment.num_ranks > 1:
        lines["deployment"] = f"{ranks}, simulated in this process (deployment.backend: ray starts them)"
    return "\n".join(f"{name + ':':<12}{text}" for name, text in lines.items())
