"""Models that leave their devices while others compute, where the run asks for it."""

from pathlib import Path

from rlcore.errors import PlacementError
from rlcore.train_state import TrainState
from rlcore.trainers.trainer import Trainer


def rest(state: TrainState, *models: Trainer | None) -> None:
    """Let those of the models that `deployment.offload` names leave their devices until they are used again.

    Raises PlacementError if they cannot.
    """
    section = state.config.deployment
    directory = Path(section.offload_directory) if section.offload_directory else None
    for model in models:
        if model is not None and model.name in section.offload:
            try:
                model.rest(directory)
            except OSError as error:
                raise PlacementError(
                    f"the {model.name} cannot leave its device for {section.offload_directory}: {error.strerror}",
                    legal="a directory on a disk that has room for its weights and its optimizer",
                    remedy="another deployment.offload_directory, or no deployment.offload",
                ) from error
