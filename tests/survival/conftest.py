"""Tests of survival borrow the small experiment of the training room's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "paper"))
