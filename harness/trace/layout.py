"""The names of the files of a trace."""

MANIFEST = "manifest.json"
CURVE = "curve.jsonl"
TENSORS = "tensors"
UNFINISHED = "unfinished"
"""A trace of its own: what was recorded of a step in whose middle the program has ended."""


def log_name(rank: int) -> str:
    """The file of one rank's log."""
    return f"rank-{rank}.log"


def tensors_name(rank: int, step: int) -> str:
    """The file of what one rank has kept of one step, in the directory TENSORS."""
    return f"rank-{rank}-step-{step}.safetensors"
