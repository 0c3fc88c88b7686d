"""Shared by all rooms: errors, inputs and outputs, messages, pictures, progress, signals."""
