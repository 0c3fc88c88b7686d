"""What every room needs: errors, inputs and outputs, messages, pictures, progress, signals.

- child: Work on a file from elsewhere in a child process, with limits of CPU time and memory.
- errors: `InputError`: what a user can cause and fix, in one line (found, expected, remedy).
- inputs: Input files: kind, SHA-256, and similar names of a missing file.
- memory: Control whether glibc keeps the memory of freed arrays or returns it to the system.
- messages: Text for people: suggestions for names, escaping for tables, durations and sizes with units.
- metrics: Scores of predicted against true labels: accuracy, F1, the confusion matrix, and losses.
- outputs: Files and folders that appear complete or not at all; only folders of ours are removed.
- pictures: Label colours, the reliability diagram, scores of runs, and figures as PNG.
- progress: Progress of long blocks: tqdm's bar on a terminal or in a notebook, an occasional log line elsewhere.
- signals: Signals end a command cleanly: unfinished outputs are removed, and one line reports the signal.
- yaml_files: YAML from anywhere: plain values, of a limited size and depth.
"""
