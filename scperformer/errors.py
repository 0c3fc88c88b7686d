"""The one error that a user can cause and mend: found, expected, remedy, on one line."""


class InputError(ValueError):
    """Input that cannot be used; its text is one line: what was found, what was expected, what to do.

    Parameters
    ----------
    found
        What is there, with the file or option it was found in.
    expected
        What was needed instead.
    remedy
        What the user can do about it, preferably the exact option or command.
    """

    def __init__(self, found: str, expected: str, remedy: str):
        # Gene names, labels and paths are user data: a newline in one must not break the one-line promise.
        super().__init__(" ".join(f"{found}; expected {expected}: {remedy}.".split()))
