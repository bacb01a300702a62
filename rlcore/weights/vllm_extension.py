"""What vLLM's workers answer about their weights, in whatever trainer's server they are.

    vllm serve MODEL --worker-extension-cls rlcore.weights.vllm_extension.WeightAnswers

Every worker then has this method for `collective_rpc`. The module imports nothing of vLLM.
"""

from collections.abc import Sequence
from typing import Any

from harness.bits.tensor_digests import tensor_digests
from rlcore.errors import InvalidValueError
from rlcore.weights.hub_views import hub_views


class WeightAnswers:
    """Mixed into vLLM's worker class, which has the model runner."""

    model_runner: Any

    def weight_digests(self, names: Sequence[str]) -> dict[str, Any]:
        """Return {"digests": {name: digest}} for the names that there are, or {"refused", "legal", "remedy"}."""
        try:
            views = hub_views(self.model_runner.get_model())
            return {"digests": tensor_digests({name: views[name] for name in names if name in views})}
        except InvalidValueError as error:
            return {"refused": error.what, "legal": error.legal, "remedy": error.remedy}
