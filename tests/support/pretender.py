"""A program that records as one with torch does, and needs none: what the lab starts in tests.

    python pretender.py [--steps N] [--ranks N] [--other K] [--tear] [--slow S] [--end CODE|leave|lost|skip|kill]
        [--problem TEXT] [--fifo NAME ...] [--grow NAME]

From the step in `--other` on, values are another process's own: no two runs of it agree. With `--end leave` rank 0
alone ends in order, and the others are workers of a cluster, with `--end lost` of nobody; with `--end skip` no rank
does, and the program leaves with 0 all the same. With `--fifo` FIFOs take the places of files of the trace after the
first step, with `--grow` a file of it has 6 GB then. It reads its standard input first. Options that it does not know
mean nothing to it.
"""

import argparse
import os
import signal
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path

from harness.recording.run_spec import PROCESSES, RUN_VARIABLE, Report, RunSpec
from harness.trace import Fingerprint, Float, Manifest, RecordedValue, TraceWriter, digest

TEXT = "the order of sets and dictionaries of text follows from this"


def main() -> None:
    """Record what was ordered, and end as told."""
    told = arguments()
    path = os.environ.get(RUN_VARIABLE)
    orders = RunSpec.parse(Path(path).read_text("utf-8")) if path else None
    print("begins", *sys.stdin.read().split(), flush=True)
    writers = open_writers(orders, told) if orders else []
    for step in range(told.steps):
        time.sleep(told.slow)
        print(f"step {step}", flush=True)
        for writer in writers:
            writer.append(step, recorded_values_of(step, told.other), {"loss": Float("f32", 0x3F800000 + step)})
        if orders and step == 0:
            replace_files(Path(orders.directory), told)
    for writer in writers[: {"leave": 1, "lost": 1, "skip": 0, "kill": 0}.get(told.end, len(writers))]:
        writer.close()
        if writer.rank == 0 and orders:
            close_report(Path(orders.directory))
    if told.tear and orders:
        with Path(orders.directory, f"rank-{told.ranks - 1}.log").open("ab") as log:
            log.write(b"torn")
    if told.end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(told.end) if told.end.isdecimal() else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--other", type=int, default=-1)
    parser.add_argument("--tear", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--end", default="0")
    parser.add_argument("--problem", default="")
    parser.add_argument("--fifo", action="append", default=[])
    parser.add_argument("--grow", default="")
    return parser.parse_known_args()[0]


def open_writers(orders: RunSpec, told: argparse.Namespace) -> list[TraceWriter]:
    """A writer for each rank, all in this process."""
    directory = Path(orders.directory)
    manifest = Manifest(Fingerprint(identity=orders.identity), orders.argv, told.ranks, orders.level)
    num_ranks = told.ranks if told.steps else 0
    for rank in range(max(1, told.ranks)):
        report = Report(
            pid=os.getpid() if rank == 0 else 2**22 + rank,  # beyond every process
            argv=tuple(sys.argv),
            python="python",
            rank=rank if num_ranks else None,
            num_steps=told.steps,
            problem=told.problem,
            level_env={name: os.environ.get(name) for name in orders.level_env},
            string_hash=f"{hash(TEXT):x}",
            metrics=("loss",),
            cluster="Ray" if rank and told.end == "leave" else "",
        )
        save(directory, report)
    return [TraceWriter(directory, manifest, rank=rank, say=print) for rank in range(num_ranks)]


def replace_files(directory: Path, told: argparse.Namespace) -> None:
    for name in told.fifo:
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)
    if told.grow:
        with (directory / told.grow).open("ab") as file:
            file.truncate(6 << 30)


def save(directory: Path, report: Report) -> None:
    (directory / PROCESSES).mkdir(exist_ok=True)
    path = directory / PROCESSES / f"{report.pid}.json"
    path.with_suffix(".new").write_text(report.to_text(), "utf-8")
    path.with_suffix(".new").replace(path)


def close_report(directory: Path) -> None:
    """This process has ended its recording."""
    report = Report.parse((directory / PROCESSES / f"{os.getpid()}.json").read_text("utf-8"))
    save(directory, replace(report, is_closed=True))


def recorded_values_of(step: int, other: int) -> list[RecordedValue]:
    """A loss and a gradient."""
    is_other = 0 <= other <= step
    loss = struct.pack("<f", 1 / (step + 1))
    gradient = struct.pack("<16f", *range(step, step + 16)) + (os.urandom(8) if is_other else b"the same")
    return [
        RecordedValue("loss", "loss", 0, "f32", (), *digest(loss)),
        RecordedValue("backward", "layer.weight", 0, "f32", (18,), *digest(gradient)),
    ]


if __name__ == "__main__":
    main()
