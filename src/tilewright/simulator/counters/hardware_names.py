"""The names of the hardware's counters, as ``ncu --query-metrics`` lists them for compute capability 9.0.

Some counters are left out because they count something else than their names say, or vary from run to run. The counter
of the wavefronts of all shared accesses together is left out, because it also counts reads of ``threadIdx`` and
barriers. The counter of the wavefronts of asynchronous copies is left out, because ncu does not read it from the
hardware: ncu computes it by a model, in code that it inserts into the kernel, and gives wavefronts even for copies that
take none. Counters of bytes are left out, too.
"""

from __future__ import annotations

from ...records.unit_counters import TENSOR_INSTRUCTIONS, UNIT_COUNTERS, UNIT_LABELS

#: Kind of access → its part of the name of a counter of compute capability 9.0, and its name in labels.
_KINDS = {
    "ld": ("ld", "loads"),
    "st": ("st", "stores"),
    "atom": ("atom", "atomics"),
    "red": ("red", "reductions"),
    "cp.async": ("ldgsts", "asynchronous copies"),
    "ldmatrix": ("ldsm", "matrix loads"),
    "stmatrix": ("stsm", "matrix stores"),
}
#: The kinds that each space has. In shared memory a reduction is an atomic whose result is not used.
_IN_SPACE = {
    "shared": ("ld", "st", "atom", "cp.async", "ldmatrix", "stmatrix"),
    "global": ("ld", "st", "atom", "red", "cp.async"),
    "local": ("ld", "st"),
}
#: The fields of a tally that each memory space counts, with the counter's name, in which ``{}`` is the place of the kind,
#: and its label.
FIELDS = {
    "shared": {
        "requests": ("smsp__inst_executed_op_shared_{}.sum", "requests: instructions, counted per warp"),
        "wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum", "wavefronts: turns of the 32 banks"),
        "conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum", "bank conflicts: additional turns"),
    }
} | {
    space: {
        "requests": (f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{{}}.sum", "requests: instructions, counted per warp"),
        "sectors": (f"l1tex__t_sectors_pipe_lsu_mem_{space}_op_{{}}.sum", "sectors: 32 bytes moved each"),
    }
    for space in ("global", "local")
}
#: Kinds that L1's own counters count together with another kind; only the profiler's patched code (SASS) separates them.
_LUMPED = {("shared", "ldmatrix"): "ld", ("shared", "stmatrix"): "st", ("global", "cp.async"): "ld"}
#: The counter of bank conflicts of all kinds of shared access together.
ALL_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"


def names(space: str, kind: str) -> dict[str, list[str]]:
    """Return, for each field of a tally, the counters to which the field adds; the first one counts this kind of access
    alone.

    >>> names("global", "ld")["sectors"]
    ['l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum']
    >>> names("shared", "ldmatrix")["wavefronts"][1]
    'l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum'
    """
    counters = {field: [name] for field, (name, _) in _own(space, kind).items()}
    if kind == "wgmma":
        counters["requests"].append(TENSOR_INSTRUCTIONS)
    if (space, kind) in UNIT_COUNTERS:
        return counters
    for field in counters:
        name = FIELDS[space][field][0]
        if (space, kind) in _LUMPED and name.startswith("l1tex__"):
            counters[field].append(name.format(_LUMPED[space, kind]))
    if space == "shared":
        counters["conflicts"].append(ALL_CONFLICTS)
    return counters


def _own(space: str, kind: str) -> dict[str, tuple[str, str]]:
    """Field → the counter of that kind alone, and its label."""
    if (space, kind) in UNIT_COUNTERS:
        return UNIT_COUNTERS[space, kind]
    op, plural = _KINDS["atom" if (space, kind) == ("shared", "red") else kind]
    counters = {}
    for field, (pattern, text) in FIELDS[space].items():
        if (kind, field) == ("cp.async", "wavefronts"):
            continue
        name = pattern.format(op)
        if (space, kind) in _LUMPED:
            name = name.replace("l1tex__", "smsp__sass_l1tex_")
        if op in ("ldgsts", "ldsm"):
            name = name.replace("executed_op_shared_", "executed_op_")
        counters[field] = name, f"{space} {plural}, {text}"
    return counters


#: The label of every counter, in plain words.
LABELS = {
    name: text for space, kinds in _IN_SPACE.items() for kind in kinds for name, text in _own(space, kind).values()
}
LABELS[ALL_CONFLICTS] = "shared memory, all accesses, conflicts"
LABELS |= UNIT_LABELS
