"""Old names of options and their values, each refused with the present one."""

from harness.trace.renames import LEVELS

OPTIONS = {"--keep": "--save-tensors", "--op": "--trace-ops", "--op-step": "--trace-ops"}
VALUES = {"--level": LEVELS}
