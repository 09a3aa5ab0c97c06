"""GPUs: which ones the ranks see, what they held before, and whether it is free again. Nothing here loads the driver.

The driver's library is loaded in a helper process (:mod:`.helper`): a driver call that hangs in the kernel cannot be
interrupted, and a thread stuck there would keep the agent itself from ending. Only before any rank runs does
:mod:`ftlaunch.launcher.host.devices` ask it in the agent, for the devices that there are.
"""
