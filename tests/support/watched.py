"""Run commands from a JSON file in this process, and print which of them import or start anything from elsewhere.

The working folder is on the path of Python, so that any module in it that is named anywhere would be found.
"""

import json
import os
import sys
import sysconfig
from pathlib import Path

import scperformer

OWN = (
    str(Path(scperformer.__file__).parent),
    *set(sysconfig.get_paths().values()),
    sys.base_prefix,
)
STARTS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.startfile")
seen: list[str] = []


def watch(event: str, args: tuple) -> None:
    """Note code of other files that is executed, modules with a hostile name, and started programs."""
    if event == "exec" and not (args[0].co_filename.startswith((*OWN, "<"))):
        seen.append(f"executed {args[0].co_filename}")
    elif event == "import" and args[0].partition(".")[0] == "evil":
        seen.append(f"imported {args[0]}")
    elif event in STARTS and os.fspath(args[0] or "") != "":
        seen.append(f"{event} {args[0]}")


def main() -> None:
    """Run each command, and print a JSON list: its exit code, the lines with errors, and what was seen."""
    from scperformer.cli.main import main as run

    commands = json.loads(Path(sys.argv[1]).read_text())
    sys.path.insert(0, os.getcwd())
    run(commands[0])  # what any command imports
    sys.addaudithook(watch)
    results = []
    for words in commands:
        seen.clear()
        results.append([run(words), list(seen)])
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
