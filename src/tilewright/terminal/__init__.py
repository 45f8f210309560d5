"""What the commands print, for a terminal of 80 columns."""

from .facts import show_facts
from .records import show_bench, show_comparison

