"""Named situations: what the harness is run against."""
