"""What `rlharness doctor` looks at: a room per kind of thing, each from what was read to findings by a pure function.

examination      every check at once, each with its limit
checks           the table of them
host             what a check is given, and how it asks a child process
gpus             GPUs, NVLink, the driver against torch's CUDA
network          the preflight's findings
directories      TMPDIR, its locks, socket paths, /dev/shm, limits of the process
lock_trial       (child) takes locks in a directory
containers       the means of ending process trees, limits of the control group
cgroup_limits    reading those
environment      Ray's addresses
rank_variables   a place among ranks that was inherited, or cannot be
packages         versions that do not fit each other, what pip says
numerics         which kernel strategy keeps the bits of torch's operations here; asked of the engine's probe
torch_facts      (child) what torch was built for, and whether it finds the GPUs
bootstrap        where a distributed bootstrap sticks: processes that try each layer
layers           which layer that was, from what they reported

children         how a check asks a child process
diagnosis        options to findings: which of these are looked at

Nothing here prints: `cli/commands/doctor.py` does.
"""
