"""The output of the commands, for a terminal of 80 columns."""

from .cpu_explanation import show_cpu_explanation
from .explanation import refusals, show_explanations, show_occupancy
from .facts import show_facts
from .product import show_plan, show_product
from .progress import BenchProgress, ProductProgress, TuneProgress, blocks_progress, steps_shown
from .records import show_bench, show_comparison
from .scaling import show_scaling
from .tuning import show_tuned, show_tuned_blocking

__all__ = [
    "BenchProgress",
    "ProductProgress",
    "TuneProgress",
    "blocks_progress",
    "refusals",
    "show_bench",
    "show_comparison",
    "show_cpu_explanation",
    "show_explanations",
    "show_facts",
    "show_occupancy",
    "show_plan",
    "show_product",
    "show_scaling",
    "show_tuned",
    "show_tuned_blocking",
    "steps_shown",
]
