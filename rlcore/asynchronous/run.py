"""The three processes of a run: each is started again where it was killed, and all end with this one, in every path."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread

from tqdm import tqdm

from harness.bits.levels import is_intels, level_variables
from harness.process.supervisor.syscalls import die_with_parent
from rlcore.asynchronous.directory import BATCHES, RUN, read_batch, steps
from rlcore.asynchronous.live import Live
from rlcore.asynchronous.settings import read_infer, read_orch, read_train
from rlcore.errors import InvalidValueError, WorkerError

PARENT = "RLCORE_PARENT"
"""Holds the process whose end is the end of this one."""
REPLICA = "RLCORE_REPLICA"
"""Holds the number of a sampler of several at one port."""
POLL_S = 0.05
GRACE_S = 5.0
MOST_DEATHS = 1000
"""Deaths by a signal, of all processes of a run, after which it ends."""


def environment(level: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a process of a level. Raises UsageError where those that are set exclude it."""
    return {**environ, **level_variables(level, environ, is_held_by_entry=True, is_intels=is_intels())}


def begin_process(level: str) -> None:
    """Begin again with the variables of the level, which libraries read once; end with the parent, if there is one."""
    wanted = environment(level)
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, "-m", "rlcore.commands", *sys.argv[1:]], wanted)
    if parent := os.environ.get(PARENT):
        die_with_parent()
        if os.getppid() != int(parent):  # it has ended before
            raise SystemExit(0)


def check_together(train: Path, infer: Path, orch: Path) -> None:
    """Check that three files are of one run. Raises InvalidValueError."""
    (trainer, _), (sampler, _), (orchestrator, _) = read_train(train), read_infer(infer), read_orch(orch)
    runs = [
        Path(trainer.output_dir, RUN).resolve(),
        *(Path(each.output_dir).resolve() for each in (sampler, orchestrator)),
    ]
    if len(set(runs)) > 1:
        raise InvalidValueError(
            f"{train} trains for {runs[0]}, {infer} serves {runs[1]}, {orch} works in {runs[2]}",
            legal=f"one directory: output_dir DIR in {train}, DIR/{RUN} in the others",
        )
    if not Path(trainer.model).is_dir():
        raise InvalidValueError(f"model {trainer.model!r} of {train}", legal="a directory with a checkpoint")
    models = [str(Path(each).resolve()) for each in (trainer.model, sampler.model, orchestrator.model.name)]
    if len(set(models)) > 1:
        raise InvalidValueError(f"the models are {', '.join(models)}", legal="one checkpoint for all three")
    if 0 < trainer.max_steps < (orchestrator.max_steps or 0):
        what = f"max_steps is {trainer.max_steps} in {train}, and {orchestrator.max_steps} in {orch}"
        raise InvalidValueError(what, legal="equal, or -1 for the trainer")
    if trainer.loss.teacher_tau and orchestrator.teacher_model is None:
        raise InvalidValueError(f"loss.teacher_tau is set in {train}", legal=f"0, or a teacher_model in {orch}")
    if orchestrator.seq_len > trainer.sequence_len:
        what = f"seq_len is {orchestrator.seq_len} in {orch}, and sequence_len {trainer.sequence_len} in {train}"
        raise InvalidValueError(what, legal=f"at most {trainer.sequence_len}: the trainer reads no more")
    if trainer.lora > sampler.enable_lora:
        raise InvalidValueError(f"lora is true in {train}, and enable_lora false in {infer}", legal="both, or neither")
    for name in ("lora_rank", "lora_alpha"):
        if (given := getattr(orchestrator.model, name)) not in (None, own := getattr(trainer, name)):
            raise InvalidValueError(f"model.{name} is {given} in {orch}", legal=f"{own}, as in {train}")
    if f":{sampler.port}/" not in "".join(orchestrator.client.base_url):
        raise InvalidValueError(f"{infer} serves port {sampler.port}, which client.base_url of {orch} does not have")


class Family:
    """Processes of a run: one that a signal has ended is started again, one that fails ends the run."""

    def __init__(
        self, files: Mapping[str, Path], say: Callable[[str], None], show: Callable[[str], None] | None = None
    ) -> None:
        """Start one for each file, by its role; of samplers of one file, by infer.0, infer.1 and so on.

        Without `show`, which takes their lines, they share the terminal of this process.
        """
        self._files, self._say, self._show, self._num_deaths = files, say, show, 0
        self._readers = dict[str, Thread]()
        self.children = {role: self._start(role) for role in files}

    def _start(self, role: str) -> "subprocess.Popen[bytes]":
        """Start a process of a role, which ends with this one; infer.1 has the GPU 1 of those that are visible."""
        name, _, number = role.partition(".")
        command = [sys.executable, "-m", "rlcore.commands", f"grpo-{name}", str(self._files[role])]
        environ = {**os.environ, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        if number:
            visible = dict(enumerate(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
            environ |= {REPLICA: number, "CUDA_VISIBLE_DEVICES": visible.get(int(number)) or number}
        pipe, into_it = (subprocess.PIPE, subprocess.STDOUT) if self._show else (None, None)
        child = subprocess.Popen(command, env=environ, stdout=pipe, stderr=into_it)
        self._readers[role] = Thread(target=_pass_on, args=(child, self._show or self._say), daemon=True)
        self._readers[role].start()
        return child

    def tend(self) -> None:
        """Look after them. Raises WorkerError for one that has ended with an error, and after too many deaths."""
        for role, child in self.children.items():
            code = child.poll()
            if code is None or (code == 0 and not role.startswith("infer")):
                continue
            self._readers[role].join(GRACE_S)  # until what it said last is shown
            if code >= 0:
                raise WorkerError(f"{role} has ended with {code}", role=role, remedy="see what it says above")
            self._num_deaths += 1
            if self._num_deaths > MOST_DEATHS:
                raise WorkerError(f"{self._num_deaths} processes of the run were killed", role=role)
            self._say(f"{role} (pid {child.pid}) was ended by {signal.Signals(-code).name}: it is started again")
            self.children[role] = self._start(role)

    def finish(self, run: Path) -> None:
        """Wait for the orchestrator where it has published its last batch, and evaluates."""
        if (done := steps(run / BATCHES)) and read_batch(run, done[-1])["is_last"]:
            while self.children["orch"].poll() != 0:
                self.tend()
                time.sleep(POLL_S)

    def __enter__(self) -> "Family":
        """Return the family."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all, in every path."""
        for child in self.children.values():
            child.terminate()
        deadline = time.monotonic() + GRACE_S
        for child in self.children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for reader in self._readers.values():
            reader.join(GRACE_S)


def _pass_on(child: "subprocess.Popen[bytes]", show: Callable[[str], None]) -> None:
    """Show the lines of a process, if they come here; of one that was written over itself, what it was at last."""
    for line in child.stdout or ():
        show(line.decode(errors="replace").rstrip().rpartition("\r")[2])


def replicate(file: Path, num_replicas: int, say: Callable[[str], None]) -> int:
    """Run several samplers of a file until this process is ended. Raises WorkerError."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Family({f"infer.{number}": file for number in range(num_replicas)}, say) as family:
        while True:
            family.tend()
            time.sleep(POLL_S)


def supervise(files: Mapping[str, Path], say: Callable[[str], None]) -> int:
    """Run the three processes until the trainer has trained the last step, and it is evaluated. Raises WorkerError."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    is_shown, orch = sys.stdout.isatty() and sys.stderr.isatty(), read_orch(files["orch"])[0]
    show = partial(tqdm.write, file=sys.stderr) if is_shown else None
    run = Path(orch.output_dir)
    with Live(run, orch.max_steps, is_shown=is_shown) as live, Family(files, say, show) as family:
        while family.children["train"].poll() != 0:
            family.tend()
            live.show()
            time.sleep(POLL_S)
        family.finish(run)
    return 0
