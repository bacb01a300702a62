"""The checks of `rlharness doctor`: one module per subject, each with a pure function from readings to findings.

examination      every check at once, each with its limit
checks           the table of them
host             the input of a check, and its way to run a child process
gpus             GPUs, NVLink, the driver against torch's CUDA
network          the preflight's findings
directories      TMPDIR, its locks, socket paths, /dev/shm, limits of the process
lock_trial       (child) takes locks in a directory
containers       the means of ending process trees, limits of the control group
cgroup_limits    reading those
environment      Ray's addresses
rank_variables   rank variables that were inherited, or are invalid
packages         incompatible versions, the answer of pip check
numerics         the kernel strategy that keeps the bits of torch's operations here, from the engine's probe
torch_facts      (child) the build of torch, and whether it finds the GPUs
bootstrap        the layer at which a distributed bootstrap hangs: processes that try each layer
layers           the layer that failed, from their reports

children         child processes of checks
diagnosis        options to findings: the choice of checks

Nothing here prints: `cli/doctor.py` does.
"""
