"""Features of the engine's configuration, seen in short trainings."""

from tests.guards.features.feature import Feature

FEATURES: tuple[Feature, ...] = ()
