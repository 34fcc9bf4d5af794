"""`deskhand/integrations/desktop_env/machine_process.py` in an environment that lacks what only `desktop-env`'s metrics
use (see `peer`)."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from peer import hide_what_only_metrics_use

hide_what_only_metrics_use()
importlib.import_module("deskhand.integrations.desktop_env.machine_process").main()
