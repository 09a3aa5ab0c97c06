"""What the agent executes in a worker: ``python bootstrap.py KIND TARGET ARGS…`` or ``python bootstrap.py --standby``.

Run by path and compiled anew each time, so everything else is in :mod:`ftlaunch.heartbeat.worker`.
"""

from __future__ import annotations

import sys

if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    # The interpreter put our own folder there.
    del sys.path[0]

from _frozen_importlib import module_from_spec
from _frozen_importlib_external import spec_from_file_location

_spec = spec_from_file_location("ftlaunch.heartbeat.bypath", __file__[: -len("bootstrap.py")] + "bypath.py")
_bypath = module_from_spec(_spec)  # type: ignore[arg-type]
_spec.loader.exec_module(_bypath)  # type: ignore[union-attr]
_bypath.install()

from ftlaunch.heartbeat.worker import main  # noqa: E402

main()
