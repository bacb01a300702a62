"""Results and events as text, JSON, JUnit, HTML. Reads results; decides nothing."""
