"""Run as a program, `torch_facts [--use]`: what this environment's torch is.

Prints one JSON line: {"version", "cuda"}, read from torch's own version file without importing it, or {} where
there is no torch; with --use a second line, {"is_available", "warning", "archs"}, which takes an import and asks the
driver. The warning is torch's own on why it finds no GPU.
"""

import json
import runpy
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Print the lines."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        print("{}")
        return
    names = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    print(json.dumps({"version": str(names["__version__"]), "cuda": names.get("cuda")}))
    sys.stdout.flush()
    if "--use" in sys.argv[1:]:
        import torch

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            is_available = torch.cuda.is_available()
        warning = "; ".join(" ".join(str(each.message).split()) for each in seen)
        print(json.dumps({"is_available": is_available, "warning": warning, "archs": torch.cuda.get_arch_list()}))


if __name__ == "__main__":
    main()
