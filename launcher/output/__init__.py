"""Output of ranks: pipes read by a thread of their own, raw bytes to files, whole lines to the console.

:class:`.pump.OutputPump` reads and distributes, :class:`.console.Console` prints. Neither ever waits for the agent's
event loop, and neither lets a slow console or a full disk stop a rank.
"""
