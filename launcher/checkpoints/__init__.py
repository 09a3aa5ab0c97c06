"""Find the complete checkpoints of a directory and choose the one that a generation resumes from.

Nothing here imports torch, runs code from a pickle, changes or deletes a file, or keeps state between calls.
:mod:`.scan` looks, :mod:`.choose` decides over the views of all nodes, ``python -m ftlaunch.launcher.checkpoints``
runs a scan in a process of its own, so that a hung file server costs the agent a child and not its life.
"""
