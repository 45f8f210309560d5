// The parts of a float64 or complex128 product whose residues do not keep the bound of the error: by float64 on tensor
// cores, from the operands themselves. A block whose part is not flagged leaves at once.
#include "../launches.cuh"
#define MODULI 1
#include "../residues.cuh"
constexpr int PLANES = EACH;
#include "../dmma.cuh"

static_assert(FLAGGED_ROWS % BM == 0 && FLAGGED_COLUMNS % BN == 0, "a block computes what one flag is for");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
multiply_flagged_f64(const double* a, const double* b, double* c, const int* flags, const __grid_constant__ Call call)
{
    wait_for_launch_before();
    const Place place = place_of_block(call);
    const int across = (call.n - 1) / FLAGGED_COLUMNS + 1;
    if (flags[place.top / FLAGGED_ROWS * across + place.left / FLAGGED_COLUMNS]) multiply_strided(a, b, c, call);
}
