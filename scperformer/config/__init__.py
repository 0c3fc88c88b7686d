"""The options that several commands share, and the rules for their values; cli/X.py has the options of X alone."""
