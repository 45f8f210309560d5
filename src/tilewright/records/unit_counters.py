"""The names of the counters of tensor cores and of the copy engine, which GPUs before Hopper do not have."""

from __future__ import annotations

#: The counters of instructions of all tensor cores, and of the cycles in which these are busy, for ``wgmma`` and
#: ``mma.sync`` together.
TENSOR_INSTRUCTIONS = "sm__inst_executed_pipe_tensor.sum"
TENSOR_CYCLES = "sm__pipe_tensor_cycles_active.sum"
_CYCLES = TENSOR_CYCLES, "tensor cores, busy cycles, those of the four of a multiprocessor together"
#: By memory space and kind of work: for each field of a tally, the counter's name and its label.
UNIT_COUNTERS: dict[tuple[str, str], dict[str, tuple[str, str]]] = {
    ("shared", "wgmma"): {
        "requests": ("sm__inst_executed_pipe_tensor_op_gmma.sum", "wgmma: instructions, counted per warp"),
        "wavefronts": (
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
            "wgmma, wavefronts: turns of the 32 banks to read its operands",
        ),
        "cycles": _CYCLES,
    },
    ("registers", "mma"): {
        "requests": (TENSOR_INSTRUCTIONS, "tensor cores, instructions, of wgmma too, counted per warp"),
        "cycles": _CYCLES,
    },
    ("shared", "mbarrier"): {},
    ("tensor memory", "tcgen05"): {},
    ("global", "tma load"): {
        "requests": ("smsp__inst_executed_op_tma_ld.sum", "copy engine, loads: instructions"),
        "sectors": (
            "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",
            "copy engine, loads, sectors: 32 bytes that arrive each",
        ),
    },
    ("global", "tma store"): {
        "requests": ("smsp__inst_executed_op_tma_st.sum", "copy engine, stores and reductions: instructions"),
        "sectors": (
            "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum",
            "copy engine, stores, sectors: 32 bytes written each",
        ),
    },
    ("global", "tma reduce"): {
        "requests": ("smsp__inst_executed_op_tma_st.sum", "copy engine, stores and reductions: instructions"),
        "sectors": (
            "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_red.sum",
            "copy engine, reductions, sectors: 32 bytes sent each",
        ),
    },
}
#: The label of every counter, in plain words.
UNIT_LABELS = dict(counter for counters in UNIT_COUNTERS.values() for counter in counters.values())
