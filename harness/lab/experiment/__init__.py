"""What every experiment shares: run specs, scenario files, the launcher, recorded runs."""
