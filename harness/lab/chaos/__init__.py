"""Chaos: what must not matter is changed, and what matters all the same is shrunk to its smallest cause.

    baseline ─▶ probe 1, 2, ... ─the first that differs─▶ fewer factors ─▶ fewer steps ─▶ simpler values ─▶ sentence

values, factors, drawing, shrink and comparison are pure; conditions brings a perturbation to a run; bench starts runs;
hunt decides what is run next. What a run's own processes import are launch, busy and crash.
"""
