// The parts of a product of float32 that split operands do not represent well enough: by multiply-adds, from the operands themselves.
// A block whose part is not flagged leaves at once.
constexpr int PLANES = 1;
#include "../launches.cuh"
#include "../flags.cuh"
#include "../simt.cuh"

static_assert(BM == FLAGGED_ROWS && BN == FLAGGED_COLUMNS, "a block computes what one flag is for");

// As ``strided.cuh`` says; `next_*_excesses`: words from the excesses of one matrix to those of the next, each of 32 lines.
struct Flagged {
    Call call;
    long long next_a_excesses, next_b_excesses;
    int limit, unused;
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
multiply_flagged(const float* a, const float* b, float* c, const int* a_excesses, const int* b_excesses,
                 const __grid_constant__ Flagged flagged)
{
    wait_for_launch_before();
    const Place place = place_of_block(flagged.call);
    a_excesses += place.product * flagged.next_a_excesses;
    b_excesses += place.product * flagged.next_b_excesses;
    const int excess = largest_of_rows(a_excesses, place.top) + largest_of_columns(b_excesses, place.left);
    if (excess > flagged.limit) multiply_strided(a, b, c, flagged.call);
}
