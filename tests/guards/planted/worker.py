"""A warm process that makes one recorded run after another; started by `workers`, told and telling in JSON lines.

    {"payload": ..., "directory": ..., "lost_after": 3}  ─▶  {"end": "whole", "is_reached": true, "step": 5, ...}

torch is imported, and the level certified, once. A fault is taken back after its run, with what torch was told; that
nothing of it stays is seen from the honest runs that come after (`honest_pairs.left_behind`).
"""

import contextlib
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.lab.experiment.flat_config import flattened, parts
from harness.recording.recorder import Kept, Recorder
from harness.trace.format import RecordedValue
from harness.trace.manifest import Fingerprint, Manifest
from harness.trace.values import Float
from harness.trace.writer import TraceWriter
from rlcore.config import RUNTIME_SECTIONS
from rlcore.errors import RlcoreError
from tests.guards.planted.entry import DEEDS, run
from tests.guards.planted.settings import LEVEL

TRACE = "trace"


class LostError(Exception):
    """The process is gone, as far as the engine can tell."""


class TraceSink:
    """Writes the steps of a run as a trace, and is lost at the end of one of them where that is asked for."""

    def __init__(self, writer: TraceWriter, lost_after: int | None) -> None:
        self._writer, self._lost_after = writer, lost_after

    def append(self, step: int, leaves: Sequence[RecordedValue], tensors: Sequence[Kept]) -> None:
        """As a recorder's sink."""
        self._writer.append(step, leaves, tensors=tensors)
        if self._writer.ended_by:
            raise RuntimeError(f"the trace is not written any more: {self._writer.ended_by}")
        if step == self._lost_after:
            raise LostError

    def log_values(self, values: Mapping[str, Float]) -> None:
        """As a recorder's sink."""
        self._writer.log_values(values)


def open_part(directory: Path, manifest: Manifest, rank: int) -> Recorder:
    """Open the recorder of another process, whose log lies beside that of the first."""
    writer = TraceWriter(directory, manifest, rank=rank, say=lambda line: None)
    return Recorder(TraceSink(writer, None), close=partial(writer.close, complete=True))


def restore_torch() -> None:
    """Take back what a fault may have told the whole process about arithmetic."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)


def recorded(payload: Mapping[str, Any], directory: Path, lost_after: int | None = None) -> dict[str, Any]:
    """Make one run; its trace lies in `directory`/trace. What it came to, as plain values."""
    bound, free = parts(payload, (*RUNTIME_SECTIONS, "fault"))
    told = {"fault": "", **free.get("fault", {})}
    fingerprint = Fingerprint(flattened(bound), perturbation=flattened(free.get("runtime", {})))
    deployment = {"backend": "in_process", "num_ranks": 1, **free.get("deployment", {})}
    num_logs = 1 if deployment["backend"] == "in_process" else 1 + deployment["num_ranks"]
    manifest = Manifest(fingerprint, level=LEVEL, world_size=num_logs)
    writer = TraceWriter(directory / TRACE, manifest, say=lambda line: None)

    def share(num_others: int) -> list[partial[Recorder]]:
        return [partial(open_part, directory / TRACE, manifest, rank) for rank in range(1, num_others + 1)]

    end: dict[str, Any] = {"end": "whole", **told}
    try:
        run(payload, level=LEVEL, directory=directory, recorder=Recorder(TraceSink(writer, lost_after), share=share))
    except LostError:
        end["end"] = "lost"
    except RlcoreError as error:
        end |= {"end": "refused", "error": type(error).__name__, "what": error.what, "phases": error.phases}
    except Exception as error:  # whatever a fault breaks: it is told, and counted as an end nobody has designed
        end |= {"end": "broken", "error": type(error).__name__, "what": traceback.format_exc(limit=-4)}
    restore_torch()
    writer.close(complete=end["end"] == "whole")
    deeds: dict[str, Any] = json.loads((directory / DEEDS).read_text("utf-8"))
    return end | deeds


def main() -> None:
    """Answer requests until there are no more."""
    restore_torch()
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            request = json.loads(line)
            found = recorded(request["payload"], Path(request["directory"]), request["lost_after"])
            print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
