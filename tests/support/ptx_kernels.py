"""Small kernels in PTX, for tests that need no compiler."""

# ruff: noqa: E501 - a line of PTX is a line

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.simulator import Run, RunOptions, simulate

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def kernel(params: str, body: str, registers: str = "") -> str:
    """PTX of a kernel; %r0 is the thread in the grid, %rd0 four times that."""
    return f"""{HEAD}.visible .entry k({params}) {{
.reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<4>; .reg .f64 %fd<4>; {registers}
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r0, %r1, %r2, %r3; mul.wide.u32 %rd0, %r0, 4;
{body}
ret;
}}"""


#: y[i] = x[i] + 1 where i < n
ADD_ONE = kernel(".param .u64 x, .param .u64 y, .param .u32 n", """ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r4, [n];
add.s64 %rd1, %rd1, %rd0; add.s64 %rd2, %rd2, %rd0; setp.ge.s32 %p1, %r0, %r4; @%p1 bra DONE;
ld.global.f32 %f1, [%rd1]; add.f32 %f1, %f1, 0f3F800000; st.global.f32 [%rd2], %f1;
DONE:""")  # fmt: skip
#: x[i] counts to n
COUNT = kernel(".param .u64 x, .param .u32 n", """ld.param.u64 %rd1, [x]; ld.param.u32 %r4, [n]; add.s64 %rd1, %rd1, %rd0; mov.u32 %r5, 0;
AGAIN: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, %r4; @%p1 bra AGAIN;
st.global.u32 [%rd1], %r5;""")  # fmt: skip
NOTHING = kernel("", "")
SCALARS = kernel(".param .f32 f, .param .f64 d, .param .u8 u, .param .b32 b, .param .align 8 .b8 s[16], .param .u64 y", """
ld.param.f32 %f1, [f]; cvt.f64.f32 %fd1, %f1; ld.param.f64 %fd2, [d]; ld.param.u8 %r1, [u]; ld.param.u32 %r2, [s+4]; ld.param.u64 %rd1, [y];
st.global.f64 [%rd1], %fd1; st.global.f64 [%rd1+8], %fd2; cvt.rn.f64.u32 %fd3, %r1; st.global.f64 [%rd1+16], %fd3;
cvt.rn.f64.u32 %fd3, %r2; st.global.f64 [%rd1+24], %fd3;""")  # fmt: skip


def add_one(x: Any, y: Any, n: Any, grid: Any = 2, block: Any = 32, **options: Any) -> Run:
    return simulate(ADD_ONE, "k", grid, block, [x, y, n], RunOptions(**options))


def floats(count: int = 64) -> np.ndarray:
    return np.arange(count, dtype=np.float32)
