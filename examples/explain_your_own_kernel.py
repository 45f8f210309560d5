"""Run your own CUDA kernel on the CPU: find its defects, and count the memory accesses of each line. No GPU is needed.

    python examples/explain_your_own_kernel.py [SIDE]

The script needs the extra `cuda`. SIDE is the number of tiles along each side of the matrix; the default is 2. The script
runs three versions of a kernel that transposes a matrix by tiles of 32×32 in shared memory. The first version has a
defect, the second is right but slow, and the third is right and fast.
"""

import sys

import numpy as np

import tilewright as tw

SOURCE = """
extern "C" __global__ void transpose(const float* x, float* y, int n)
{
    __shared__ float tile[32][PITCH];
    int i = threadIdx.x, j = threadIdx.y;
    tile[j][i] = x[(blockIdx.y * 32 + j) * n + blockIdx.x * 32 + i];
    BARRIER
    y[(blockIdx.x * 32 + j) * n + blockIdx.y * 32 + i] = tile[i][j];
}
"""

#: The macros of the three versions. With a pitch of 33, the elements of a column are in different banks.
VERSIONS = {
    "without a barrier": {"PITCH": 32, "BARRIER": ""},
    "columns in one bank": {"PITCH": 32, "BARRIER": "__syncthreads();"},
    "rows padded to 33": {"PITCH": 33, "BARRIER": "__syncthreads();"},
}


def main(side: int = 2) -> None:
    n = 32 * side
    listing = ""
    x = np.arange(n * n, dtype=np.float32).reshape(n, n)
    for title, macros in VERSIONS.items():
        # `args` are the kernel's arguments in order. Arrays are copied; seen.arrays has their contents after the launch.
        seen = tw.microscope(
            SOURCE, "transpose", grid=(side, side), block=(32, 32), args=[x, np.zeros_like(x), n], defines=macros
        )
        print(f"== {title} ==")
        for finding in seen.findings:
            print(f"{finding.kind} at line {finding.line}: {SOURCE.splitlines()[finding.line - 1].strip()}")
            print(f"    {finding.text}")
        print("y is", "x transposed" if np.array_equal(seen.arrays[1], x.T) else "wrong", "in this run")
        for access in seen.accesses:
            cost = f"{access.sectors} sectors" if access.space == "global" else f"{access.wavefronts} wavefronts"
            conflicts = f", {access.conflicts} of them bank conflicts" if access.conflicts else ""
            print(f"line {access.line}: {access.space} {access.kind}, {access.requests} requests, {cost}{conflicts}")
        print()
        listing = str(seen)  # the source with its counters in the margin
    print(listing)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
