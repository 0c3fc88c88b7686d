"""Shared by all subpackages: errors, inputs and outputs, messages, pictures, progress, signals."""
