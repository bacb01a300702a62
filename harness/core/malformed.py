"""The errors that mean "this data is not of the expected shape", for every reader of files and messages of others.

JSON may be nested too deeply (RecursionError), have numbers that no float holds (ArithmeticError), texts where numbers
belong (ValueError, TypeError, AttributeError), and lack what is looked up (LookupError).
"""

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
