"""`rlharness demo`: shows `run` and `replay` on an example project, and whether they find what is planted in it."""

import sys
from pathlib import Path

import click

import harness.lab.demo
from harness.bits.exit_codes import ExitCode
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import show

PROJECT = Path(harness.lab.demo.__file__).parent / "project"
PLANTED = {"tests/test_sampler.py": "timed_out", "tests/test_kernels.py": "crashed", "tests/test_node.py": "not_run"}
"""Outcome of each test file with a planted fault; all others pass."""
NEXT = """
$ rlharness plan --gpus sim:4
    shows the schedule, now that the durations are known
$ rlharness replay --step 3 --trace-ops -- {python} train.py
    names the operation and the line that draw the noise
In your own project, type `rlharness run` for `pytest`, and put
`rlharness replay --` before the command that trains."""


@click.command()
@opt.out("example project; must be new or empty.  [default: rlharness-demo]", default="rlharness-demo")
@click.pass_obj
def demo(invocation: Invocation, /, *, out: str) -> int:
    """Show `run` and `replay` at work on an example project.

    Its suite has a hang and a crash, and the runs of its program differ. Needs no GPU. The part with `replay` needs
    torch, and is left out without it. Exits with 0 if everything that ran found what is planted, else 3.
    """
    import contextlib
    import shlex
    import shutil
    from importlib.util import find_spec

    from harness.bits.text import one_line, path_text
    from harness.lab.experiment.preparation import OutDirectory, place_of
    from harness.process.supervisor.foreground import run_in_foreground
    from harness.runner.records.recorded_run import read_recorded_run

    directory = OutDirectory.take(place_of(invocation.cwd, out)).path
    shutil.copytree(PROJECT, directory, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    name = one_line(path_text(directory))
    typed_python = shutil.which("python", path=invocation.environ.get("PATH"))
    is_own = typed_python and Path(typed_python).parent.resolve() == Path(sys.executable).parent.resolve()
    python = "python" if is_own else sys.executable

    def typed(title: str, command: str, *words: str) -> int:
        """Run a command of rlharness in this terminal."""
        show(f"\n# {title}\n$ {shlex.join(['rlharness', command, *words])}")
        return run_in_foreground([sys.executable, "-m", "harness", command, *words], invocation.environ)

    show(f"The example project is in {name}.\nComments in its files say what is planted.\n\n$ cd {shlex.quote(name)}")
    compared = None
    with contextlib.chdir(directory):
        title = "A suite of eight files on four simulated GPUs; one hangs, one crashes."
        code = typed(f"1. {title}", "run", "--gpus", "sim:4")
        if code == ExitCode.INTERRUPTED:
            return code
        results = read_recorded_run(Path(".rlharness/runs/latest")).results
        if find_spec("torch"):
            title = "A training program, run twice. It seeds torch, and yet its runs differ."
            compared = typed(f"2. {title}", "replay", "--", python, "train.py")
            if compared == ExitCode.INTERRUPTED:
                return compared

    found = {path: result.outcome.value for path, result in sorted(results.items())}
    wanted = dict.fromkeys(found, "passed") | PLANTED
    missed = [path for path, outcome in wanted.items() if found.get(path) != outcome]
    missed += ["train.py"] if compared not in (None, ExitCode.DIVERGED) else []
    code = ExitCode.INTERNAL_ERROR if missed else ExitCode.OK
    show("\n# What was planted, and what rlharness found")
    texts = {
        path: found.get(path, "no outcome").upper().replace("_", " ") for path in dict.fromkeys([*PLANTED, *missed])
    }
    if compared is not None:
        texts["train.py"] = "DIVERGED" if compared == ExitCode.DIVERGED else f"exit code {compared}"
    for path, text in texts.items():
        show(f"  {'NOT FOUND' if path in missed else 'ok'}  {path:<22} {text}")
    if compared is None:
        show("  --  train.py was not run: install torch to see `rlharness replay`")
    show(f"\n# Next, in {name}")
    show(NEXT.format(python=shlex.quote(python)).lstrip())
    return code
