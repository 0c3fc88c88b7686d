"""`python -m scperformer`, and the command `scperformer`."""

from scperformer.base.signals import EndedBySignal, exit_process, handle_signals, say_ended


def run() -> None:
    """Run the command line and end the process with its exit code; signals end it on one line from here on."""
    handle_signals()
    try:
        from scperformer.command.cli import main

        code = main()
    except (KeyboardInterrupt, EndedBySignal) as error:  # during the imports of the command line
        code = say_ended(error)
    exit_process(code)


if __name__ == "__main__":
    run()
