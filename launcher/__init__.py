"""The agent: one ``ftlaunch`` process per node that starts ranks, watches them and brings the job back."""

__version__ = "0.1.0"
