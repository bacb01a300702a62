"""Whether the roots and chains of a trace follow from its values."""

from harness.bits.errors import TraceError
from harness.trace.format import chain_start, log_name, step_root
from harness.trace.reader import Trace, chain_breaks


def verify(trace: Trace) -> list[str]:
    """Return the roots and chains of a trace that do not follow from its values; an empty list if all do.

    Opens every step, which comparing does not.
    """
    wrong = []
    start = None if trace.manifest is None else chain_start(trace.manifest.fingerprint.identity)
    for rank, log in trace.ranks.items():
        wrong += [
            f"{log_name(rank)}: the chain of step {step} does not follow from the one before"
            for step in chain_breaks(log, start)
        ]
        for step in log.heads:
            try:
                root = step_root(step, trace.columns(step, rank).values())
            except TraceError as error:
                wrong.append(f"{log_name(rank)}: step {step} cannot be opened: {error.what}")
                continue
            if root != log.heads[step].root:
                wrong.append(f"{log_name(rank)}: the root of step {step} does not match its values")
    return wrong
