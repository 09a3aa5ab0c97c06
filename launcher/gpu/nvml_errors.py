"""What can go wrong with NVML, in our words. Raised by :mod:`.client`, never shows a driver object."""

from __future__ import annotations


class NvmlError(Exception):
    """A question to the driver was not answered. One line for the user."""


class NvmlUnavailable(NvmlError):
    """There is no NVML to ask: no driver, no library, no permission. Nothing is wrong with the node."""


class NvmlDead(NvmlError):
    """The process that asks the driver has ended. Nothing is wrong with the node; another one may be started."""


class NvmlHung(NvmlDead):
    """The driver did not answer in time. It is not asked again: the node is not fit for ranks."""
