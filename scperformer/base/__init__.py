"""What every other room uses: errors, inputs and outputs, progress, texts and scores. It is imported by file.

Files in reading order: signals (imported first, by `__main__`), errors, messages, memory, inputs, yaml_files, outputs,
progress, metrics, pictures, child. Commands import `signals` and `errors` before numpy, so this `__init__` imports
nothing.
"""
