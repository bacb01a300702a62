"""Traces of training runs: write, read and compare them, without torch. FORMAT.md says what is in the files.

format.py       the bytes of each file; value hash, step root, chain
writer.py       a log for each rank, a frame a step          reader.py       several ranks, cut anywhere
values.py       floats by their bits; how elements differ    fingerprint.py  what the bits may depend on
diff.py         the comparison of two traces                 ops.py          the operations of a step
"""

from harness.bits.digests import add_shards, digest, shardsum
from harness.trace.format import RecordedValue, Scope
from harness.trace.manifest import Fingerprint, Manifest
from harness.trace.reader import Trace, read_trace
from harness.trace.values import Float
from harness.trace.writer import TraceWriter, close_log, write_manifest

__all__ = [
    "Fingerprint",
    "Float",
    "Manifest",
    "RecordedValue",
    "Scope",
    "Trace",
    "TraceWriter",
    "add_shards",
    "close_log",
    "digest",
    "read_trace",
    "shardsum",
    "write_manifest",
]
