"""The command `rlcore`: asynchronous GRPO, whose three processes share a directory.

    rlcore grpo --train train.yaml --infer infer.yaml --orch orch.yaml
    rlcore grpo-infer infer.yaml        each in a terminal of its own, in any order
    rlcore grpo-orch orch.yaml
    rlcore grpo-train train.yaml
    rlcore grpo-audit outputs/run_default

What needs torch is imported by the command that needs it.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from rlcore.errors import RlcoreError

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


def say(role: str, line: str) -> None:
    """Write a line on the terminal."""
    click.echo(f"{role}: {line}", err=True)


def reported(command: Callable[..., int]) -> Callable[..., None]:
    """Exit with what a command returns; show an error of a user as three lines."""

    @wraps(command)
    def run(**given: Any) -> None:
        from harness.bits.errors import UsageError

        try:
            code = command(**given)
        except (RlcoreError, UsageError) as error:
            parts = [("error", getattr(error, "what", str(error))), ("legal", error.legal), ("remedy", error.remedy)]
            for name, text in parts:
                if text:
                    click.echo(f"{name + ':':<8}{text}", err=True)
            code = 4
        except KeyboardInterrupt:
            code = 2
        sys.exit(code)

    return run


@click.group()
def main() -> None:
    """Reinforcement learning of language models."""


@main.command("grpo")
@click.option("--train", type=FILE, help="The trainer's file.")
@click.option("--infer", type=FILE, help="That of inference.")
@click.option("--orch", type=FILE, help="That of the orchestrator.")
@click.option("--simulate", type=DIRECTORY, help="Instead: what a run in this directory would gain by other numbers.")
@reported
def grpo(train: Path | None, infer: Path | None, orch: Path | None, simulate: Path | None) -> int:
    """Run inference, orchestrator and trainer together; start again what is killed."""
    if simulate is not None:
        from rlcore.asynchronous.simulation import measured_run, table

        for line in table(measured_run(simulate), ahead=(0, 1, 2, 4), samplers=(1, 2, 4)):
            click.echo(line)
        return 0
    if train is None or infer is None or orch is None:
        raise click.UsageError("--train, --infer and --orch are needed together")
    from rlcore.asynchronous.run import check_together, supervise

    check_together(train, infer, orch)
    return supervise({"train": train, "infer": infer, "orch": orch}, partial(say, "grpo"))


@main.command("grpo-infer")
@click.argument("file", type=FILE)
@reported
def infer(file: Path) -> int:
    """Answer completions of any version of the weights."""
    from rlcore.asynchronous.run import begin_process
    from rlcore.asynchronous.settings import read_infer

    section = _read(read_infer, "infer", file)
    begin_process(section.level)
    from rlcore.asynchronous.processes import run_infer

    return run_infer(section, partial(say, "infer"))


@main.command("grpo-orch")
@click.argument("file", type=FILE)
@reported
def orch(file: Path) -> int:
    """Ask for completions, score them, and publish batches."""
    from rlcore.asynchronous.settings import read_orch

    section = _read(read_orch, "orch", file)
    from rlcore.asynchronous.run import begin_process

    begin_process("off")
    from rlcore.asynchronous.processes import run_orch

    return run_orch(section, partial(say, "orch"))


@main.command("grpo-train")
@click.argument("file", type=FILE)
@reported
def train(file: Path) -> int:
    """Train batches, and publish weights."""
    from rlcore.asynchronous.run import begin_process
    from rlcore.asynchronous.settings import read_train

    section = _read(read_train, "train", file)
    begin_process(section.level)
    from rlcore.asynchronous.processes import run_train

    return run_train(section, partial(say, "train"))


@main.command("grpo-audit")
@click.argument("directory", type=DIRECTORY)
@reported
def audit(directory: Path) -> int:
    """Prove that every group was trained or discarded once."""
    from rlcore.asynchronous.audit import audit as audited

    found = audited(directory)
    for line in found.lines():
        click.echo(line)
    return 0 if found.is_right else 1


def _read(read: Callable[[Path], tuple[Any, Sequence[str]]], role: str, file: Path) -> Any:
    section, notices = read(file)
    for line in notices:
        say(role, line)
    return section


if __name__ == "__main__":
    main()
