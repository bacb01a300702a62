"""The command line: parses options, calls, renders, and ends with an exit code. The only package that knows click."""
