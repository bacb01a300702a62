"""Perturbs settings that should not affect results, and minimizes any perturbation that does.

    baseline ─▶ probe 1, 2, ... ─the first that differs─▶ fewer factors ─▶ fewer steps ─▶ simpler values ─▶ sentence

drawing, shrink and comparison are pure; conditions applies a perturbation to a run; executor starts runs;
search selects the next run. A run's own processes import launch, busy and crash.
"""
