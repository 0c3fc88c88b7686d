"""`python -m scperformer`, and the command `scperformer`."""

import os

from scperformer.base.signals import EndedBySignal, exit_process, handle_signals, say_ended


def run() -> None:
    """Run the command line and end the process with its exit code; signals end it on one line from here on."""
    handle_signals()
    # Every Python that is started from here (Snakemake, its jobs, Lightning's and Hydra's processes) imports installed
    # modules alone, and no files of the working folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        from scperformer.cli.main import main

        code = main()
    except (KeyboardInterrupt, EndedBySignal) as error:  # during the imports of the command line
        code = say_ended(error)
    exit_process(code)


if __name__ == "__main__":
    run()
