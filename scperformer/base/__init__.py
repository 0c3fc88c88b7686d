"""Shared by all rooms: errors, inputs and outputs, messages, pictures, progress, signals.

- child: Do work on a file from elsewhere in a child process with limits of CPU time and memory.
- errors: `InputError`, for everything that a user can cause and fix: one line that says found, expected and remedy.
- inputs: Files that are read: their kind and SHA-256, and the names beside one that does not exist.
- memory: The memory of this machine; whether glibc keeps the memory of freed arrays or returns it to the system.
- messages: Text for people: checks and suggestions for names, escaping for tables, and durations with units.
- metrics: Scores of predicted against true labels: accuracy, F1, the confusion matrix, and losses.
- outputs: Write files and folders so that they appear complete or not at all, and remove only folders that we have
  made.
- pictures: Label colours, the reliability diagram, and figures as PNG.
- progress: Progress of long blocks: tqdm's bar on a terminal or in a notebook, an occasional log line elsewhere.
- signals: Signals end a command cleanly: unfinished outputs are removed, and one line reports the signal.
- yaml_files: YAML that may come from anywhere: plain values alone, of a limited size and depth.
"""
