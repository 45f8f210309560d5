"""What the hardware calls its counters: the names that ``ncu --query-metrics`` lists for compute capability 9.0."""

from __future__ import annotations

#: What each kind of access is called by the hardware counters of compute capability 9.0, and in words.
_KINDS = {
    "ld": ("ld", "loads"),
    "st": ("st", "stores"),
    "atom": ("atom", "atomics"),
    "red": ("red", "reductions"),
    "cp.async": ("ldgsts", "asynchronous copies"),
    "ldmatrix": ("ldsm", "matrix loads"),
    "stmatrix": ("stsm", "matrix stores"),
}
#: The kinds that each space has. In shared memory a reduction is an atomic whose result nobody reads.
_IN_SPACE = {
    "shared": ("ld", "st", "atom", "cp.async", "ldmatrix", "stmatrix"),
    "global": ("ld", "st", "atom", "red", "cp.async"),
    "local": ("ld", "st"),
}
#: Fields of a tally that each memory space counts: the counter's name with ``{}`` for the kind, and the words.
FIELDS = {
    "shared": {
        "requests": ("smsp__inst_executed_op_shared_{}.sum", "requests: instructions, one a warp"),
        "wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum", "wavefronts: turns of the 32 banks"),
        "conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum", "bank conflicts: turns too many"),
        "bytes": ("smsp__sass_data_bytes_mem_shared_op_{}.sum", "bytes asked for"),
    }
} | {
    space: {
        "requests": (f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{{}}.sum", "requests: instructions, one a warp"),
        "sectors": (f"l1tex__t_sectors_pipe_lsu_mem_{space}_op_{{}}.sum", "sectors: 32 bytes moved each"),
        "bytes": (f"smsp__sass_data_bytes_mem_{space}_op_{{}}.sum", "bytes asked for"),
    }
    for space in ("global", "local")
}
#: Kinds that the L1's own counters lump together with others, and only the profiler's patched code (SASS) tells apart.
_BY_PATCH = ("ldgsts", "ldsm", "stsm")
#: Sums over all kinds of shared access that the hardware counts too.
SHARED_SUMS = {
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
}


def names(space: str, kind: str) -> dict[str, tuple[str, str]]:
    """Field of a tally → counter's name and label, for one kind of access."""
    op, words = _KINDS["atom" if (space, kind) == ("shared", "red") else kind]
    found = {}
    for field, (pattern, text) in FIELDS[space].items():
        name = pattern.format(op)
        if op in _BY_PATCH:
            name = name.replace("l1tex__", "smsp__sass_l1tex_")
        if op in ("ldgsts", "ldsm"):
            name = name.replace("executed_op_shared_", "executed_op_")
        found[field] = name, f"{space} {words}, {text}"
    return found


#: Every counter's label in plain words.
LABELS = {
    name: text for space, kinds in _IN_SPACE.items() for kind in kinds for name, text in names(space, kind).values()
}
LABELS |= {name: f"shared memory, all accesses, {field}" for field, name in SHARED_SUMS.items()}
