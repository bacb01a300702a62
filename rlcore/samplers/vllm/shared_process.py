"""Several engines of vLLM in one process: policy, replicas, reward model."""


def keep_process_group() -> None:
    """Keep vLLM's process group of one rank when an engine ends: the other engines of this process use it.

    vLLM 0.32 destroys it with whichever engine is collected first; the next pass of another one then fails with
    "pipeline model parallel group is not initialized".
    """
    from vllm.v1.engine import core

    core.cleanup_dist_env_and_memory = lambda *_, **__: None
