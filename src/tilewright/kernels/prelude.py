"""Functions that several CPU rungs share: they copy blocks between a matrix and a buffer. None of these functions is
the idea of a rung."""

from tilewright.cpu.codegen import njit


@njit(nogil=True)
def load_block(source, row, column, block):
    """Copy the block of ``source`` that starts at (row, column) into ``block``, with zeros beyond the matrix's edge."""
    height, width = block.shape
    rows = min(height, source.shape[0] - row)
    columns = min(width, source.shape[1] - column)
    if rows < height or columns < width:
        block[:] = 0
    for r in range(rows):
        for s in range(columns):
            block[r, s] = source[row + r, column + s]


@njit(nogil=True)
def store_block(block, target, row, column):
    """Copy the part of ``block`` that lies inside ``target`` to ``target``, from (row, column) on."""
    height, width = block.shape
    for r in range(min(height, target.shape[0] - row)):
        for s in range(min(width, target.shape[1] - column)):
            target[row + r, column + s] = block[r, s]


@njit(nogil=True, fastmath={"contract"})
def multiply_block(rows, size, a, b, c):
    """Add a·b to the first ``rows`` rows of c, in the loop order i, k, j. k and n are both ``size``, a constant for
    which the compiler makes faster loops."""
    for i in range(rows):
        for p in range(size):
            scale = a[i, p]
            for j in range(size):
                c[i, j] += scale * b[p, j]
