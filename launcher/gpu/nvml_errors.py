"""What can go wrong with NVML, in our words. Raised by :mod:`.client`, never shows a driver object."""

from __future__ import annotations


class NvmlError(Exception):
    """A question to the driver was not answered. One line for the user."""


class NvmlUnavailable(NvmlError):
    """There is no NVML to ask: no driver, no library, no permission. Nothing is wrong with the node."""


class NvmlDead(NvmlError):
    """The driver hung, or took its process down. It is not asked again: the node is not fit for ranks."""
