"""What several CPU rungs share: copies of blocks between a matrix and a buffer. No rung's idea is here."""

from tilewright.cpu.codegen import njit


@njit(nogil=True)
def load_block(source, row, column, block):
    """Copy the block of ``source`` that starts at (row, column) into ``block``, zeros beyond the matrix's edge."""
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
    """Copy the part of ``block`` that lies inside ``target``, from (row, column) on."""
    height, width = block.shape
    for r in range(min(height, target.shape[0] - row)):
        for s in range(min(width, target.shape[1] - column)):
            target[row + r, column + s] = block[r, s]


@njit(nogil=True, fastmath={"contract"})
def multiply_block(rows, size, a, b, c):
    """c += a·b for the first ``rows`` rows, in ikj order; k and n are ``size``, which is faster as a constant."""
    for i in range(rows):
        for p in range(size):
            scale = a[i, p]
            for j in range(size):
                c[i, j] += scale * b[p, j]
