// The parts of a product of float32 that split operands do not represent well enough, from the operands themselves: by three products of
// TF32, which has the exponents of float32, and where that does not suffice, by multiply-adds. A block whose part is not flagged leaves at
// once.
constexpr int PLANES = 1;
#include "../launches.cuh"
#include "../flags.cuh"
#include "../simt.cuh"

#define TYPE TF32
#include "../mma_split.cuh"

static_assert(BM == FLAGGED_ROWS && BN == FLAGGED_COLUMNS, "a block computes what one flag is for");
static_assert(BM + BN <= 2 * THREADS, "a thread looks at a row and a column");

// As ``strided.cuh`` says. Of each operand there are exponents of `groups_*` · 32 lines, and then the excesses of the groups; those of
// the next matrix follow `next_*` words further. An excess of a row and a column above `limit` together flags their part, and one above
// `widest` leaves it to multiply-adds.
struct Flagged {
    Call call;
    long long next_a, next_b;
    int groups_a, groups_b, limit, widest;
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
multiply_flagged(const float* a, const float* b, float* c, const int* of_a, const int* of_b, const __grid_constant__ Flagged flagged)
{
    wait_for_launch_before();
    const Place place = place_of_block(flagged.call);
    of_a += place.product * flagged.next_a;
    of_b += place.product * flagged.next_b;
    const int excess = largest_of_rows(of_a + flagged.groups_a * LINES_OF_EXCESS, place.top) +
                       largest_of_columns(of_b + flagged.groups_b * LINES_OF_EXCESS, place.left);
    if (excess <= flagged.limit) return;
    // A line whose largest magnitude is below 2^-112 cannot be scaled by one multiplication.
    const int thread = threadIdx.x, *rows = of_a + place.top, *columns = of_b + place.left;
    const bool is_small = thread < BM && rows[thread] < -126 || thread < BN && columns[thread] < -126;
    if (!__syncthreads_or(is_small) && excess <= flagged.widest) mma_sync::multiply_split_strided(a, b, c, flagged.call, rows, columns);
    else multiply_strided(a, b, c, flagged.call);
}
