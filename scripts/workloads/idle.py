"""A rank that says where it is and does nothing, so that only the launcher uses anything."""

import os
import signal
from pathlib import Path

Path(os.environ["DRILL_OUT"], f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
while True:
    signal.pause()
