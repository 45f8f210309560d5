"""Addresses of the shared memory of other blocks of a cluster: ``mapa`` and ``getctarank`` (PTX ISA 9.7.9.23, 9.7.9.24)."""

from __future__ import annotations

import numpy as np

from ..assembly.instructions import Instruction
from ..machine.lanes import Lanes
from ..machine.shared_space import RANK_BIT, address_in
from ..machine.spaces import WINDOW
from ..machine.values import Ints
from ._table import Step, check_modifiers, destination, step

_KINDS = ("u32", "u64")


@step("mapa", _KINDS)
def _mapa(ins: Instruction, lanes: Lanes) -> Step:
    """The address of the same variable in the shared memory of another block, as a shared or a generic address."""
    generic, kind = "shared" not in check_modifiers(ins, ("shared", "cluster")), ins.parts[-1]
    out = destination(lanes, ins, ins.operands[0], kind)[0]
    address, rank = lanes.source(ins.operands[1], kind, ins), lanes.source(ins.operands[2], "u32", ins)
    window = out.dtype.type(WINDOW["shared"] if generic else 0)

    def map_address(sel: Ints | None) -> None:
        size = lanes.size if sel is None else sel.size
        a, r = (np.broadcast_to(x if sel is None or x.ndim == 0 else x[sel], size) for x in (address, rank))
        bad = r >= lanes.cluster.size
        if bad.any():
            text = f"a cluster has {lanes.cluster.size} blocks, and none of rank {int(r[np.argmax(bad)])}: {ins.text}"
            lanes.reports.report("out of bounds", ins, sel, bad, None, text)
        out[slice(None) if sel is None else sel] = address_in(a, np.minimum(r, 127)) | window

    return map_address


@step("getctarank", _KINDS)
def _getctarank(ins: Instruction, lanes: Lanes) -> Step:
    """The rank of the block in whose shared memory an address lies."""
    check_modifiers(ins, ("shared", "cluster"))
    out = destination(lanes, ins, ins.operands[0], "u32")[0]
    address = lanes.source(ins.operands[1], ins.parts[-1], ins)

    def rank(sel: Ints | None) -> None:
        a = address if sel is None or address.ndim == 0 else address[sel]
        own = lanes.cluster.rank if sel is None else lanes.cluster.rank[sel]
        there = (a.astype(np.int64) >> RANK_BIT) & 0xFF
        out[slice(None) if sel is None else sel] = np.where(there == 0, own, there - 1)

    return rank
