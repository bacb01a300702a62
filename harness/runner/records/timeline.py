"""The timeline of a run: a row per GPU and CPU slot, with the files that ran there."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from harness.runner.records.run_record import FileSpan, RunRecord


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU or CPU slot, and what ran there."""

    name: str
    """Name of the row, such as "GPU 0" or "CPU slot 1"."""
    title: str
    """The GPU's line ("0 NVIDIA H200 143 GB GPU-aaaa"); the name for a CPU slot."""
    files: tuple[FileSpan, ...]
    """Files, in the order of their starts."""
    lost_s: float | None = None
    """Seconds from which on the GPU was in quarantine."""

    @property
    def busy_s(self) -> float:
        """Seconds in which a file ran here."""
        return sum(each.end_s - (each.start_s or 0.0) for each in self.files)


def rows_of(record: RunRecord) -> tuple[Row, ...]:
    """Return the rows: all GPUs in the order of the run, then the CPU slots used at once.

    A file that leased several GPUs is on the row of each. A GPU that files share has as many rows as it had at once.
    The record does not number CPU slots: a file is put on the first that is free when it starts.
    """
    started = sorted(
        (each for each in record.files.values() if each.start_s is not None),
        key=lambda each: (each.start_s, each.path),
    )
    slots = _packed(each for each in started if not each.gpu_ids)
    return (
        *_gpu_rows(record, started),
        *(Row(f"CPU slot {number}", f"CPU slot {number}", files) for number, files in enumerate(slots)),
    )


def _gpu_rows(record: RunRecord, started: list[FileSpan]) -> Iterable[Row]:
    lost = {each.gpu_id: each.since_s for each in record.lost_gpus}
    lines = {line.split()[-1]: line for line in record.gpus if line.split()}
    leased = dict.fromkeys(gpu_id for each in started for gpu_id in each.gpu_ids if gpu_id.strip())
    for gpu_id in dict.fromkeys((*lines, *leased)):
        line = lines.get(gpu_id, gpu_id)
        rows = _packed(each for each in started if gpu_id in each.gpu_ids) or [()]
        for number, files in enumerate(rows, start=1):
            name = f"GPU {line.split()[0]}" + (f" ({number})" if number > 1 else "")
            yield Row(name, line, files, lost.get(gpu_id))


def _packed(files: Iterable[FileSpan]) -> list[tuple[FileSpan, ...]]:
    """Files, in the order of their starts, on as few rows as hold no two at once."""
    rows: list[list[FileSpan]] = []
    for each in files:
        start_s = each.start_s if each.start_s is not None else inf
        row = next((row for row in rows if row[-1].end_s <= start_s), None)
        if row is None:
            rows.append(row := [])
        row.append(each)
    return [tuple(row) for row in rows]
