"""What the commands print, for a terminal of 80 columns."""

from .explanation import show_explanations, show_occupancy
from .facts import show_facts
from .records import show_bench, show_comparison
from .tuning import show_tuned

__all__ = ["show_bench", "show_comparison", "show_explanations", "show_facts", "show_occupancy", "show_tuned"]
