"""Run as a program: looks at this CPU's operations and prints what was certified, for `rlharness doctor`.

A JSON line for each type: {"dtype", "device", "machine"} and either {"problem"} or {"strategy", "length", "duration_s",
"naive"}, the last being what torch's own operations do: [{"operation", "num_cases", "num_different", "first"}]. One is
all, {"missing": module}, where the engine's extra is not installed. Widths and lengths are the probe's own: a run looks
again, at those of its model. GPUs are not looked at: level invariant is refused there.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

NEEDS = ("torch", "numpy")
DEVICE = "cpu"


def survey() -> Iterator[dict[str, Any]]:
    """The lines, each as soon as it is known."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        yield {"missing": missing[0]}
        return
    import torch

    from rlcore.numerics.invariance_report import machine

    for dtype in (torch.float32, torch.bfloat16):
        yield {
            "dtype": str(dtype).removeprefix("torch."),
            "device": DEVICE,
            "machine": machine(),
            **_certified(dtype),
        }


def _certified(dtype: Any) -> dict[str, Any]:
    from rlcore.errors import LevelError
    from rlcore.numerics.probe import certify

    try:
        invariance_report = certify(dtype, DEVICE)
    except LevelError as error:
        return {"problem": error.what}
    naive = [
        {
            "operation": each.operation,
            "num_cases": each.num_cases,
            "num_different": each.num_different,
            "first": each.first,
        }
        for each in invariance_report.measurements
        if each.strategy == "off"
    ]
    return {
        "strategy": invariance_report.strategy.name,
        "length": invariance_report.length,
        "duration_s": invariance_report.duration_s,
        "naive": naive,
    }


def main() -> None:
    """Print the lines."""
    for line in survey():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
