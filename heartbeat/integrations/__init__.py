"""Callbacks for training frameworks. Imported on demand only; none is needed for stalls to be seen.

They add what a hook on the optimizer cannot know: the framework's own step number, and where evaluation begins and
ends (section ``eval``, with a time-out of its own).
"""
