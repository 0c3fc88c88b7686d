"""What a command does, in one function that the command line and Python share."""
