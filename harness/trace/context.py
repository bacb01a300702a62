"""Contexts of two traces: the first step at which the state of a random-number generator differs."""

from harness.trace.chain import RecordedValue, Scope
from harness.trace.format import Columns
from harness.trace.reader import Trace
from harness.trace.verdict import Context

RANDOM = "random."
"""Prefix of the names of states; other values of this scope explain a difference in their own way."""
LOADER_SEED = "random.loader_seed"
"""Name of the number from which a DataLoader seeds its workers."""
BATCH_ORIGIN = "batch_origin"
"""Name of where a batch came from: its number, its worker's number or -1, the number of workers; precedes the batch."""
States = dict[tuple[str, int], tuple[str, str, bytes]]
"""Name and occurrence -> dtype, algorithm, digest."""


def compare_contexts(a: Trace, b: Trace, until: int | None) -> Context | None:
    """Compare the contexts of all steps that both have, up to `until`; None where there is nothing to compare.

    A state is recorded where it has changed, so those that were recorded last count. A state that only one trace has
    is not compared: a trace with the operations of step 0 begins earlier. Nor is any in the first step of a resumed
    run: its process reads them when torch is imported, and restores them later.
    """
    names: dict[str, None] = {}
    known_a: dict[int, States] = {}
    known_b: dict[int, States] = {}
    steps_b = set(b.steps)
    for step in (step for step in a.steps if step in steps_b and (until is None or step <= until)):
        logs_a, logs_b = a.logs(step), b.logs(step)
        for rank in sorted(logs_a.keys() & logs_b.keys()):
            one, other = _states(a, step, rank), _states(b, step, rank)
            last_a, last_b = known_a.setdefault(rank, {}), known_b.setdefault(rank, {})
            last_a.update(one)
            last_b.update(other)
            if logs_b[rank].shift and step == b.steps[0]:
                continue
            both = [key for key in dict.fromkeys([*one, *other]) if key in last_a and key in last_b]
            different = [key for key in both if last_a[key] != last_b[key]]
            if different:
                return Context(tuple(dict.fromkeys(name for name, _ in different)), step, rank)
            names |= dict.fromkeys(name for name, _ in one)
    return Context(tuple(names)) if names else None


def _states(trace: Trace, step: int, rank: int) -> States:
    if not trace.ranks[rank].heads[step].num_contexts:
        return {}
    return {
        (value.name, value.occurrence): (value.dtype, value.algorithm, value.digest)
        for _, value in contexts(trace.columns(step, rank))
        if value.name.startswith(RANDOM)
    }


def contexts(columns: Columns) -> list[tuple[int, RecordedValue]]:
    """Return (index, value) of the few values of this scope, without decoding the others."""
    found, at = [], columns.scopes.find(Scope.CONTEXT)
    while at >= 0:
        found.append((at, columns.value(at)))
        at = columns.scopes.find(Scope.CONTEXT, at + 1)
    return found
