"""Ray pins a Gymnasium of its own, so it is installed apart; where it is not, its tests are not there."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("ray") else ["test_real_run.py"]
