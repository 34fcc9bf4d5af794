"""`deskhand/integrations/desktop_env/machine_process.py` in an environment that lacks what only `desktop-env`'s metrics
use (see `peer`)."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from peer import Finder

sys.meta_path.append(Finder())
importlib.import_module("deskhand.integrations.desktop_env.machine_process").main()
