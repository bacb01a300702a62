"""Recorded operations for tests."""

from harness.trace.ops import Operation, OpValue


def op_value(content: object, shape: str = "4", *layout: str) -> OpValue:
    """Return a value whose digest is that of `content`."""
    return OpValue("f32", shape, "xxh3_128", f"{hash(content) % 2**128:032x}", layout)


def operation(index: int, name: str = "aten.mul.Tensor") -> Operation:
    """Return an operation with one input and one output."""
    return Operation(
        index=index,
        phase="forward",
        name=name,
        at=f"train.py:{index} step",
        via="",
        arguments="tensor, 2",
        inputs=(op_value(("in", index)),),
        makers=(index - 1,),
        random="",
        outputs=(op_value(("out", index)),),
    )
