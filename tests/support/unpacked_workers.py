"""Workers of vLLM on a CPU whose linear layers keep their weights: their kernels would keep packed copies alone.

A server imports this module in each worker, before it builds the model.
"""

from vllm import _custom_ops

from rlcore.weights.vllm_extension import WeightAnswers

_custom_ops._supports_onednn = False


class UnpackedWeightAnswers(WeightAnswers):
    """As `WeightAnswers`."""
