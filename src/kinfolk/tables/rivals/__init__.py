"""What a data scientist would pick instead, on the same encoded rows; nothing is tuned by data set.

>>> [rival.name for rival in CHEAP]
['boosting', 'dummies']
"""

from kinfolk.tables.rivals import linear, mixed, places, trees
from kinfolk.tables.rivals.rival import Rival

CHEAP = (trees.BOOSTING, linear.DUMMIES)  # always in the leaderboard
OTHERS = (
    linear.RIDGE, linear.INTERACTIONS, trees.LIGHTGBM, trees.LIGHTGBM_TUNED, trees.FOREST, mixed.INTERCEPT,
    mixed.SLOPES, places.GAUSSIAN_PROCESS, places.GWR,
)  # fmt: skip

__all__ = ["CHEAP", "OTHERS", "Rival"]
