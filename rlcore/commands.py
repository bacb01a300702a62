"""The command `rlcore`: asynchronous GRPO, whose three processes share a directory.

    rlcore grpo --train train.yaml --infer infer.yaml --orch orch.yaml
    rlcore grpo-infer infer.yaml        each in a terminal of its own, in any order
    rlcore grpo-orch orch.yaml
    rlcore grpo-train train.yaml
    rlcore grpo-audit outputs/run_default

What needs torch is imported by the command that needs it.
"""

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from rlcore.errors import RlcoreError

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


def say(role: str, line: str) -> None:
    """Write a line on the terminal, above a bar."""
    tqdm.write(f"{role}: {line}", file=sys.stderr)


def reported(command: Callable[..., int], role: str = "") -> Callable[..., None]:
    """Exit with what a command returns; show an error of a user as three lines, with the process's role."""

    @wraps(command)
    def run(**given: Any) -> None:
        from harness.bits.errors import UsageError
        from rlcore.asynchronous.run import PARENT

        try:
            code = command(**given)
        except (RlcoreError, UsageError) as error:
            parts = [("error", getattr(error, "what", str(error))), ("legal", error.legal), ("remedy", error.remedy)]
            for name, text in parts:
                if text:
                    click.echo(f"{role + ': ' if role else ''}{name + ':':<8}{text}", err=True)
            code = 4
        except KeyboardInterrupt:
            if PARENT not in os.environ:
                click.echo("interrupted: run the same command again to resume", err=True)
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
        from rlcore.asynchronous.directory import claimed
        from rlcore.asynchronous.simulation import measured_run, table

        is_one = not claimed(simulate, "train").get("lora")  # of adapters a sampler holds several versions
        for line in table(measured_run(simulate), (0, 1, 2, 4), (1, 2, 4), holds_one_version=is_one):
            click.echo(line)
        return 0
    if train is None or infer is None or orch is None:
        raise click.UsageError("--train, --infer and --orch are needed together")
    from rlcore.asynchronous.run import check_together, supervise

    check_together(train, infer, orch)
    return supervise({"train": train, "infer": infer, "orch": orch}, partial(say, "grpo"))


def _role(role: str, about: str) -> None:
    """Add the command of one process: it reads its file, takes the variables of its level, and works."""

    @main.command(f"grpo-{role}", help=about)
    @click.argument("file", type=FILE)
    @partial(reported, role=role)
    def run(file: Path) -> int:
        from rlcore.asynchronous import settings
        from rlcore.asynchronous.run import REPLICA, begin_process, replicate

        section, notices = getattr(settings, f"read_{role}")(file)
        begin_process(section.level)
        number = os.environ.get(REPLICA, "")
        for line in notices if not number else ():
            say(role, line)
        if role == "infer" and section.dp > 1 and not number:
            return replicate(file, section.dp, partial(say, role))
        from rlcore.asynchronous import processes

        own = {"replica": f".{number}"} if number else {}
        return int(getattr(processes, f"run_{role}")(section, partial(say, role + own.get("replica", "")), **own))


_role("infer", "Answer completions of any version of the weights.")
_role("orch", "Ask for completions, score them, and publish batches.")
_role("train", "Train batches, and publish weights.")


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


if __name__ == "__main__":
    main()
