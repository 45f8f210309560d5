// The tiles of a product of float32 that split operands do not represent well enough: by multiply-adds, from the operands themselves,
// over what tensor cores have stored. A block whose tile has no such line leaves at once.
constexpr int PLANES = 1;
#include "../launches.cuh"
#include "../simt.cuh"

// As ``strided.cuh`` says; `next_*_excesses`: words from the excesses of one matrix to those of the next, each of 32 lines. A tile is
// multiplied again if the excess of its rows and that of its columns are more than `limit` together.
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
    a_excesses += place.product * flagged.next_a_excesses + place.top / 32;
    b_excesses += place.product * flagged.next_b_excesses + place.left / 32;
    int of_rows = 0, of_columns = 0;
    for (int i = 0; i < BM && place.top + i < flagged.call.m; i += 32) of_rows = max(of_rows, a_excesses[i / 32]);
    for (int i = 0; i < BN && place.left + i < flagged.call.n; i += 32) of_columns = max(of_columns, b_excesses[i / 32]);
    if (of_rows + of_columns > flagged.limit) multiply_strided(a, b, c, flagged.call);
}
