"""A pytest suite with the shape of verl's: as many files, as wide and as long (scaled), and some that misbehave.

`suite` draws and writes it; `check` holds a run of it against what each file was made to do.
"""
