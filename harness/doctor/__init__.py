"""The checks of `rlharness doctor`: a check is a function of the host that returns findings. `cli/doctor.py` prints.

checks       the table of them, each with its limit     packages     versions that do not fit, vLLM's build
children     the host, and child processes of checks    numerics     the engine's probe of this machine
gpus         GPUs, NVLink, the driver, torch            distributed  the layer at which a bootstrap fails
resources    TMPDIR, /dev/shm, limits, containment      probe        (child) programs of checks
environment  variables: Ray's, ranks, bits
"""
