"""Defects that are planted in the asynchronous kernels: each changes the text of a kernel, or its launch.

A defect names the kinds of findings that may report it, and words of the lines where: with a race, either of two accesses.
"""

# ruff: noqa: E501 - CUDA keeps its own lines

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .asynchronous_kernels import KERNELS, AsynchronousKernel, Launch, TileMap

#: Parts of the issue's list of what must be found.
EARLY_READ = "accumulators that are read before they are done"
IN_USE = "shared memory that a copy or a wgmma still uses"
NO_FENCE = "a missing fence"
BYTES = "bytes that do not match"
PARITY = "the wrong parity"
DEADLOCK = "a barrier that never completes"
LIFETIME = "a barrier that is initialised late, again or never"
DESCRIPTOR = "a descriptor that contradicts the tile"
CHUNKS = "rows that are no multiple of 16 bytes"
CLUSTER_EXIT = "a block that ends while others still address it"
REGISTERS = "too many registers after setmaxnreg"
SERIALISED = "wgmmas that the compiler serialises"
UNLAUNCHABLE = "a launch that no card takes"
ADDRESS = "an address that a copy cannot take"

RACE, UNWRITTEN, ENDLESS = "race", "unwritten read", "endless wait"


@dataclass(frozen=True)
class AsynchronousDefect:
    """``changes`` of the source of ``kernel``; ``kinds`` and ``lines``: what may be found, and words of the line where.

    ``launch`` and ``shared_bytes`` change the launch instead.
    """

    name: str
    category: str
    kernel: str
    changes: Sequence[tuple[str, str]]
    kinds: Sequence[str]
    lines: Sequence[str]
    launch: Callable[[Launch], Launch] | None = None
    shared_bytes: int | None = None

    @property
    def intact(self) -> AsynchronousKernel:
        return KERNELS[self.kernel]

    @property
    def source(self) -> str:
        text = self.intact.path.read_text(encoding="utf-8")
        for old, new in self.changes:
            assert text.count(old) == 1, f"{self.name}: {text.count(old)} of {old!r}"
            text = text.replace(old, new)
        return text

    def numbers(self) -> list[int]:
        """The lines where it may be found."""
        lines = self.source.splitlines()
        found = [number for words in self.lines for number, line in enumerate(lines, 1) if words in line]
        assert len(found) == len(self.lines), f"{self.name}: {self.lines} are in lines {found}"
        return found


def _fewer_columns(argument: int, columns: int) -> Callable[[Launch], Launch]:
    """The tensor map of an argument ends after so many columns; its rows stay as far apart."""

    def change(launch: Launch) -> Launch:
        args = list(launch.args)
        tile: TileMap = args[argument]
        args[argument] = replace(tile, cols=columns)
        return replace(launch, args=args)

    return change


def _shorter(launch: Launch) -> Launch:
    """The last copy has 3,608 bytes, which is no multiple of 16."""
    return replace(launch, args=[*launch.args[:2], 4998])


_FIRST_STORE = "= {d[i], d[i + 1]};"
_LOOP_WAIT = "            wgmma_wait<0>(d);\n"

DEFECTS = [
    # ---- accumulators
    *(
        AsynchronousDefect(f"{kernel}: reads the sums after no wait", EARLY_READ, kernel,
                           [("        wgmma_wait<0>(d);\n", "")], ["accumulator in flight"], lines)
        for kernel, lines in [("product bf16", ["*(Two*)&c[(long long)row * n"]), ("multicast", ["(float2*)&c[(long long)row * n"])]
    ),
    AsynchronousDefect("product s8: waits for all but one", EARLY_READ, "product s8",
                       [("        wgmma_wait<0>(d);\n", "        wgmma_wait<1>(d);\n")], ["accumulator in flight"], ["*(Two*)&c[(long long)row * n"]),
    AsynchronousDefect("persistent: waits for all but one", EARLY_READ, "persistent",
                       [("            wgmma_wait<0>(d);\n", "            wgmma_wait<1>(d);\n")], ["accumulator in flight"], ["*(float2*)&c[(long long)row * n"]),
    AsynchronousDefect("store epilogue: never waits", EARLY_READ, "store epilogue", [("        wgmma_wait<0>(d);\n", "")],
                       ["accumulator in flight"], ["store_matrices(&s.c", "pack_bf16(d[i + 4]"]),
    AsynchronousDefect("split k: changes sums that are not done", EARLY_READ, "split k",
                       [("        wgmma_commit();\n", "        wgmma_commit();\n        d[0] += 1;\n")], ["accumulator in flight"], ["d[0] += 1"]),
    # ---- shared memory in use
    AsynchronousDefect("bulk copy: reads before the bytes arrive", IN_USE, "bulk copy", [("    barrier_wait(arrived, 0);\n", "")],
                       [RACE, UNWRITTEN], ["part[i] *= 2"]),
    AsynchronousDefect("swizzled copy: reads before the bytes arrive", IN_USE, "swizzled copy 128", [("    barrier_wait(arrived, 0);\n", "")],
                       [RACE, UNWRITTEN], ["box[place(row, col)]"]),
    AsynchronousDefect("ring: reads before the bytes arrive", IN_USE, "ring", [("            barrier_wait(full[slot], parity);\n", "")],
                       [RACE, UNWRITTEN], ["sum += stage"]),
    AsynchronousDefect("product tf32: multiplies before the bytes arrive", IN_USE, "product tf32", [("            barrier_wait(s.full[slot], parity);\n", "")],
                       [RACE, UNWRITTEN], ["OPERAND::multiply("]),
    AsynchronousDefect("multicast: multiplies before the bytes arrive", IN_USE, "multicast", [("            barrier_wait(s.full[slot], parity);\n", "")],
                       [RACE, UNWRITTEN], ["wgmma_bf16_rows(d"]),
    AsynchronousDefect("product e4m3: gives a stage back while it is multiplied", IN_USE, "product e4m3",
                       [("if (step > 0 && threadIdx.x", "if (threadIdx.x"), ("(step - 1) % STAGES", "slot")], [RACE], ["load_tile(s.a[slot]", "OPERAND::multiply("]),
    AsynchronousDefect("ring: gives a stage back before it is read", IN_USE, "ring",
                       [("            barrier_wait(full[slot], parity);\n", "            barrier_wait(full[slot], parity);\n            if (threadIdx.x % 32 == 0) barrier_arrive(empty[slot]);\n"),
                        ("            if (threadIdx.x % 32 == 0)\n                barrier_arrive(empty[slot]);\n", "")], [RACE], ["load_bulk(stage", "sum += stage"]),
    AsynchronousDefect("bulk copy: ends while the copy still reads", IN_USE, "bulk copy", [("        store_wait_read();", "        //")],
                       [RACE], ["store_bulk(y"]),
    AsynchronousDefect("bulk copy: writes while the copy still reads", IN_USE, "bulk copy",
                       [("        store_wait_read();", "        part[0] = 0;\n        store_wait_read();")], [RACE], ["part[0] = 0", "store_bulk(y"]),
    AsynchronousDefect("split k: writes while the copy still reads", IN_USE, "split k",
                       [("        store_wait_read();", "        s.c[0][0][0] = 0;\n        store_wait_read();")], [RACE], ["s.c[0][0][0] = 0", "add_tile(c"]),
    AsynchronousDefect("store epilogue: stores before all have written", IN_USE, "store epilogue", [("    group_sync(1, 128);", "    //")],
                       [RACE, UNWRITTEN], ["store_tile(c, s.c[0]", "store_matrices(&s.c"]),
    AsynchronousDefect("stmatrix: reads before all have written", IN_USE, "stmatrix", [("    __syncthreads();", "    //")],
                       [RACE, UNWRITTEN], ["&tile[row][col];", "store_matrices_transposed("]),
    # ---- fences
    AsynchronousDefect("bulk copy: the doubled part is not published", NO_FENCE, "bulk copy", [("    publish_shared();\n", "")],
                       ["missing fence"], ["store_bulk(y"]),
    AsynchronousDefect("store epilogue: the tile is not published", NO_FENCE, "store epilogue", [("    publish_shared();\n", "")],
                       ["missing fence"], ["store_tile(c, s.c[0]"]),
    AsynchronousDefect("split k: the tile is not published", NO_FENCE, "split k", [("    publish_shared();\n", "")],
                       ["missing fence"], ["add_tile(c"]),
    AsynchronousDefect("product bf16: no wgmma.fence", NO_FENCE, "product bf16", [("            wgmma_fence();\n", "")],
                       ["missing fence"], ["OPERAND::multiply("]),
    AsynchronousDefect("multicast: no wgmma.fence", NO_FENCE, "multicast", [("            wgmma_fence();\n", "")],
                       ["missing fence"], ["wgmma_bf16_rows(d"]),
    AsynchronousDefect("swizzled copy: the barrier is not published", NO_FENCE, "swizzled copy 64", [("        barrier_publish();\n", "")],
                       ["missing fence", "barrier misuse"], ["load_tile(box"]),
    AsynchronousDefect("multicast: the barriers are not published", NO_FENCE, "multicast", [("        barrier_publish();\n", "")],
                       ["missing fence", "barrier misuse"], ["load_tile(s.a[slot]", "load_tile_multicast("]),
    # ---- bytes
    AsynchronousDefect("bulk copy: expects a whole part at the end", BYTES, "bulk copy", [("barrier_expect(arrived, count * 4)", "barrier_expect(arrived, PART * 4)")],
                       ["byte count", ENDLESS], ["barrier_expect(arrived", "barrier_wait(arrived"]),
    AsynchronousDefect("ring: expects whole stages at the end", BYTES, "ring", [("barrier_expect(full[slot], count *", "barrier_expect(full[slot], ROWS *")],
                       ["byte count", ENDLESS], ["barrier_expect(full", "barrier_wait(full"]),
    AsynchronousDefect("product s8: expects A alone", BYTES, "product s8", [("sizeof(s.a[0]) + sizeof(s.b[0])", "sizeof(s.a[0])")],
                       ["byte count"], ["barrier_expect(", "load_tile(s.b[slot]"]),
    AsynchronousDefect("swizzled copy: expects half a box", BYTES, "swizzled copy 32", [("sizeof(box))", "sizeof(box) / 2)")],
                       ["byte count"], ["barrier_expect(", "load_tile(box"]),
    AsynchronousDefect("multicast: expects its own half of B alone", BYTES, "multicast", [("sizeof(s.a[0]) + sizeof(s.b[0]))", "sizeof(s.a[0]) + sizeof(s.b[0]) / 2)")],
                       ["byte count"], ["barrier_expect(", "load_tile_multicast("]),
    AsynchronousDefect("swizzled copy: clips what it expects at the edge", BYTES, "swizzled copy 0",
                       [("sizeof(box));  // all", "min(COLS, cols - left) * ROWS * 4);  // all")], ["byte count"], ["barrier_expect(", "load_tile(box"]),
    # ---- parity
    AsynchronousDefect("bulk copy: waits for parity 1", PARITY, "bulk copy", [("barrier_wait(arrived, 0)", "barrier_wait(arrived, 1)")],
                       ["wrong parity", RACE, UNWRITTEN, ENDLESS], ["barrier_wait(arrived", "part[i] *= 2"]),
    AsynchronousDefect("product bf16: consumers wait for the phase before", PARITY, "product bf16",
                       [("            barrier_wait(s.full[slot], parity);", "            barrier_wait(s.full[slot], parity ^ 1);")],
                       ["wrong parity", RACE, UNWRITTEN], ["barrier_wait(s.full[slot]", "OPERAND::multiply("]),
    AsynchronousDefect("persistent: the parity never turns", PARITY, "persistent", [("            parity ^= 1;\n", "")],
                       ["wrong parity", RACE, UNWRITTEN, ENDLESS], ["barrier_wait(s.full[ring.slot]", "wgmma_f16_rows(d", "barrier_wait(s.empty[ring.slot]", "load_tile(s.a", "load_tile_multicast("]),
    AsynchronousDefect("ring: consumers count rounds of one stage less", PARITY, "ring",
                       [("parity = step / STAGES % 2, count", "parity = step / (STAGES - 1) % 2, count")],
                       ["wrong parity", RACE, UNWRITTEN, ENDLESS], ["barrier_wait(full[slot]", "sum += stage"]),
    # ---- deadlocks
    AsynchronousDefect("ring: the producer waits for the first phase of empty", DEADLOCK, "ring", [("barrier_wait(empty[slot], parity ^ 1)", "barrier_wait(empty[slot], parity)")],
                       [ENDLESS], ["barrier_wait(empty[slot]", "barrier_wait(full[slot]"]),
    AsynchronousDefect("product bf16: empty counts a third group", DEADLOCK, "product bf16", [("barrier_init(s.empty[i], 2)", "barrier_init(s.empty[i], 3)")],
                       [ENDLESS], ["barrier_wait(s.empty[slot]", "barrier_wait(s.full[slot]"]),
    AsynchronousDefect("multicast: empty counts a third block", DEADLOCK, "multicast", [("barrier_init(s.empty[i], 4)", "barrier_init(s.empty[i], 6)")],
                       [ENDLESS], ["barrier_wait(s.empty[slot]", "barrier_wait(s.full[slot]"]),
    AsynchronousDefect("ring: one warp does not give stages back", DEADLOCK, "ring", [("threadIdx.x % 32 == 0)", "threadIdx.x % 32 == 0 && warp > 0)")],
                       [ENDLESS], ["barrier_wait(empty[slot]", "barrier_wait(full[slot]"]),
    AsynchronousDefect("store epilogue: no stage is given back", DEADLOCK, "store epilogue",
                       [("        if (threadIdx.x == 0)\n            barrier_arrive(s.empty[slot]);\n", "")], [ENDLESS], ["barrier_wait(s.empty[slot]", "barrier_wait(s.full[slot]"]),
    AsynchronousDefect("persistent: the last stage of a tile is not given back", DEADLOCK, "persistent",
                       [("            if (threadIdx.x % 128 < 2)\n                barrier_arrive_at(s.empty[before], threadIdx.x % 128);  // the", "            // the")],
                       [ENDLESS], ["barrier_wait(s.empty[ring.slot]", "barrier_wait(s.full[ring.slot]"]),
    AsynchronousDefect("product tf32: B is never loaded", DEADLOCK, "product tf32",
                       [("                load_tile(s.b[slot], b, step * TILE_K, left, s.full[slot]);\n", "")], ["byte count", ENDLESS], ["barrier_expect(", "barrier_wait(s.full[slot]"]),
    AsynchronousDefect("multicast: one block sends to itself alone", DEADLOCK, "multicast", [("s.full[slot], 0b11)", "s.full[slot], 1 << rank)")],
                       ["byte count", ENDLESS], ["barrier_expect(", "barrier_wait(s.full[slot]"]),
    # ---- life of a barrier
    AsynchronousDefect("bulk copy: initialises the barrier again", LIFETIME, "bulk copy",
                       [("    barrier_wait(arrived, 0);\n", "    barrier_wait(arrived, 0);\n    if (threadIdx.x == 0) barrier_init(arrived, 2);\n")],
                       ["barrier misuse"], ["barrier_init(arrived, 2)"]),
    AsynchronousDefect("ring: initialises a barrier for each round", LIFETIME, "ring",
                       [("^ 1);  // the first", "^ 1);\n                if (step == STAGES) barrier_init(full[slot], 1);  // the first")], ["barrier misuse"], ["if (step == STAGES) barrier_init"]),
    AsynchronousDefect("product s8: one barrier is not initialised", LIFETIME, "product s8", [("i < STAGES; i++) {", "i < STAGES - 1; i++) {")],
                       ["barrier misuse", UNWRITTEN], ["barrier_wait(s.empty[slot]", "barrier_wait(s.full[slot]"]),
    AsynchronousDefect("bulk copy: waits at a barrier that may not be there", LIFETIME, "bulk copy", [("    __syncthreads();  // the barrier", "    // the barrier")],
                       ["barrier misuse", RACE, UNWRITTEN], ["barrier_init(arrived", "barrier_wait(arrived"]),
    AsynchronousDefect("multicast: starts before the other block's barriers are there", LIFETIME, "multicast",
                       [("    cluster_sync();  // the barriers", "    __syncthreads();  // the barriers")], ["barrier misuse", RACE, UNWRITTEN],
                       ["barrier_init(s.full[i]", "barrier_init(s.empty[i]", "load_tile_multicast(", "barrier_arrive_at("]),
    # ---- descriptors
    AsynchronousDefect("product bf16: half the stride", DESCRIPTOR, "product bf16", [("y = descriptor(s.b[slot], 16, 1024)", "y = descriptor(s.b[slot], 16, 512)")],
                       ["descriptor"], ["OPERAND::multiply("]),
    AsynchronousDefect("store epilogue: 64-byte swizzle", DESCRIPTOR, "store epilogue", [("x = descriptor(s.a[slot], 16, 1024)", "x = descriptor(s.a[slot], 16, 1024) ^ 3ull << 62")],
                       ["descriptor"], ["wgmma_bf16(d"]),
    AsynchronousDefect("split k: no swizzle", DESCRIPTOR, "split k", [("y = descriptor(s.b[slot], 16, 1024)", "y = descriptor(s.b[slot], 16, 1024) ^ 1ull << 62")],
                       ["descriptor"], ["wgmma_bf16(d"]),
    AsynchronousDefect("multicast: the slabs of B are half as far apart", DESCRIPTOR, "multicast", [("descriptor(s.b[slot], sizeof(s.b[0][0]), 1024)", "descriptor(s.b[slot], sizeof(s.b[0][0]) / 2, 1024)")],
                       ["descriptor"], ["wgmma_bf16_rows(d"]),
    AsynchronousDefect("product e4m3: rows that start inside an atom", DESCRIPTOR, "product e4m3", [("s.a[slot][half * 64]", "s.a[slot][half * 60]")],
                       ["descriptor"], ["OPERAND::multiply("]),
    # ---- chunks of 16 bytes
    AsynchronousDefect("store epilogue: rows of 236 bytes", CHUNKS, "store epilogue", [], ["neighbours overwritten"],
                       ["store_tile(c, s.c[1]"], _fewer_columns(2, 118)),
    AsynchronousDefect("split k: rows of 468 bytes", CHUNKS, "split k", [], ["neighbours overwritten"], ["add_tile(c"], _fewer_columns(2, 117)),
    # ---- clusters
    AsynchronousDefect("multicast: a block ends early", CLUSTER_EXIT, "multicast", [("    cluster_sync();  // no block", "    // no block")],
                       ["block left early"], ["barrier_arrive_at(", "load_tile_multicast("]),
    AsynchronousDefect("persistent: a block ends early", CLUSTER_EXIT, "persistent", [("    cluster_sync();  // no block", "    // no block")],
                       ["block left early"], ["threadIdx.x % 128);  // the producer", "load_tile_multicast("]),
    # ---- registers
    AsynchronousDefect("product bf16: takes 240 registers", REGISTERS, "product bf16", [("take_registers<232>", "take_registers<240>")], ["registers"], ["take_registers<240>"]),
    AsynchronousDefect("multicast: gives too few registers", REGISTERS, "multicast", [("give_registers<40>", "give_registers<96>")], ["registers"], ["take_registers<232>"]),
    # ---- what the compiler says
    AsynchronousDefect("product bf16: sums start as numbers of other instructions", SERIALISED, "product bf16",
                       [("        Sum d[64];\n", "        Sum d[64];\n        for (int i = 0; i < 64; i++) d[i] = i;\n"), ("step > 0 || q > 0)", "1)")], ["serialised"], ["wgmma_fence()", "OPERAND::multiply(", "wgmma_wait<1>(d)", "wgmma_wait<0>(d)"]),
    # ---- launches
    AsynchronousDefect("product bf16: eight stages", UNLAUNCHABLE, "product bf16", [("STAGES = 4", "STAGES = 8")], ["launch"], [], shared_bytes=8 * 32768 + 128),
    AsynchronousDefect("multicast: clusters of 32 blocks", UNLAUNCHABLE, "multicast", [("__cluster_dims__(1, 2)", "__cluster_dims__(1, 32)")], ["launch"], []),
    # ---- addresses
    AsynchronousDefect("bulk copy: a part that starts 4 bytes on", ADDRESS, "bulk copy", [("load_bulk(part, x + first,", "load_bulk(part, x + first + 1,")],
                       ["misaligned"], ["load_bulk(part"]),
    AsynchronousDefect("bulk copy: a copy of 3,608 bytes", ADDRESS, "bulk copy", [], ["misaligned"], ["load_bulk(part"], _shorter),
    AsynchronousDefect("swizzled copy: a box that starts 16 bytes on", ADDRESS, "swizzled copy 128", [("load_tile(box, x", "load_tile(box + 4, x")],
                       ["misaligned", "out of bounds"], ["load_tile(box + 4"]),
    *(
        AsynchronousDefect(f"{kernel}: shared memory for less than half of the stages", ADDRESS, kernel, [], ["out of bounds"], [line], shared_bytes=40_000)
        for kernel, line in [("product bf16", "load_tile(s.a[slot]"), ("multicast", "load_tile_multicast(")]
    ),
    AsynchronousDefect("stmatrix: rows that start within 16 bytes", ADDRESS, "stmatrix", [("PADDED = TILE + 8", "PADDED = TILE + 4")],
                       ["misaligned"], ["store_matrices_transposed("]),
]  # fmt: skip
