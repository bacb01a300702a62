"""The environment of a child process: the parent's, with these differences and no others.

| variable | in the child |
|---|---|
| `CUDA_VISIBLE_DEVICES` | the UUIDs of the leased cards, joined by commas; empty for a unit of 0 GPUs, which must not touch a card; as in the parent where no lease is in play (collection) |
| `CUDA_DEVICE_ORDER` | as in the parent; with `--device-ids number`, `PCI_BUS_ID`, and the line above holds NVML's numbers in place of the UUIDs of whole cards |
| `RAY_ADDRESS` | removed, not emptied: a unit starts a Ray of its own, never joins somebody's cluster |
| `RAY_TMPDIR` | removed: Ray prefers it to TMPDIR, and units that share it find each other's cluster through its `ray_current_cluster` file |
| `TMPDIR` | the attempt's own directory, short enough for Ray's socket paths, on a local file system, removed afterwards |
| `RLHARNESS_ATTEMPT` | the attempt's unique marker, by which its processes can be found |
| `MASTER_PORT` | first of the 64 ports that are the slot's own |
| everything else | as in the parent; `TMP` and `TEMP` too, which Python and C++ read after TMPDIR only |
"""  # noqa: E501

from collections.abc import Mapping

from harness.machine.inventory import Gpu

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
ATTEMPT_MARKER = "RLHARNESS_ATTEMPT"
REMOVED = ("RAY_ADDRESS", "RAY_TMPDIR")


def child_env(
    parent: Mapping[str, str],
    *,
    gpus: tuple[Gpu, ...] | None,
    tmpdir: str,
    marker: str,
    master_port: int,
    by_number: bool = False,
) -> dict[str, str]:
    """The whole environment of one child: the table above, applied to `parent`, which stays as it is.

    `gpus` are the leased cards in the order the child shall number them, () for none, None where no lease is in play.
    `by_number` names them by NVML's numbers where each has one: vLLM up to at least 0.20 reads nothing else (its
    change 46132 ends that).
    """
    env = {name: value for name, value in parent.items() if name not in REMOVED}
    if gpus is not None:
        env[CUDA_VISIBLE_DEVICES] = ",".join(gpu.gpu_id for gpu in gpus)
    if gpus and by_number and all(gpu.number is not None for gpu in gpus):
        env[CUDA_VISIBLE_DEVICES] = ",".join(str(gpu.number) for gpu in gpus)
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    env["TMPDIR"] = tmpdir
    env[ATTEMPT_MARKER] = marker
    env["MASTER_PORT"] = str(master_port)
    return env
