"""Prints what the commands found, for a terminal of 80 columns, and writes defects of kernels in formats of code
hosts."""

from .explanation import refusals, show_cpu_explanation, show_explanations, show_occupancy
from .problems import annotation, problems_of, sarif
from .progress import BenchProgress, ProductProgress, TuneProgress, blocks_progress, steps_shown
from .tables import (
    show_bench,
    show_comparison,
    show_facts,
    show_plan,
    show_product,
    show_scaling,
    show_tuned,
    show_tuned_blocking,
)

__all__ = [
    "BenchProgress",
    "ProductProgress",
    "TuneProgress",
    "annotation",
    "blocks_progress",
    "problems_of",
    "refusals",
    "sarif",
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
