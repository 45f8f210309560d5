/*
idea = "Tensor cores multiply 16-bit numbers, which threads have copied to shared memory: what runs before Hopper, with any strides."
row = "S0.9, S2"
dtypes = ["bfloat16", "float16"]
stores = ["bfloat16", "float16", "float32"]
capability = "8.0"
block = ["BM // WM * (BN // WN) * 32"]
grid = ["cdiv(m, BM) * cdiv(n, BN)"]
shared = "STAGES * (max(BM * (BK + 8), BK * (BM + 8)) + max(BN * (BK + 8), BK * (BN + 8))) * 2"
tile = ["BN", "BM"]
step = "BK"
constraints = ["BM % WM == 0", "BN % WN == 0", "WM % 16 == 0", "WN % 16 == 0"]

[strides]
a = "either"
b = "either"
c = "any"
lists = "either"

# A multiprocessor computes its blocks one after another; copies of less than 16 bytes are slower, and each step waits for
# those of single elements, unless other blocks multiply meanwhile. Rows of C at `odd` addresses are stored by words that are put together
# of two elements, and columns element by element. Rates are those of an H200.
[time]
vector = "min(a_vector, b_vector)"
slower = "1 + 0.45 * (vector < 16) + 1.05 * (vector < 4) + 0.4 * (BM * BN < 16384) + 0.4 * (BM * BN < 4096)"
copied = "(BM + BN) * part * size / 26e9"
each = "cdiv(blocks, sms)"
waits = "(vector < 4) * cdiv(part, BK) * 1.4e-6 / min(3, each)"
tiles = "each * (0.6e-6 + BM * BN * 6.5e-11 + max(BM * BN * part * slower / 1.3e12, copied, waits))"
odd = "n * out_size % 4 > 0"
memory = "((m * k + k * n) * size + m * n * parts * out_size) * batch / 3e12 * memory_ratio"
stored = "m * n * out_size * batch * max(odd * (1 - c_down) / 1.5e12, c_down / 0.45e12)"
seconds = "2.5e-6 + max(tiles, memory + stored)"

[[presets]]
rate = 80
params = { BM = 64, WM = 32, BN = 64, WN = 32 }

[[presets]]
rate = 60
params = { BM = 32, WM = 32, BN = 64, WN = 16 }

[params]
BM = { default = 128, values = [32, 64, 128] }
BN = { default = 128, values = [64, 128] }
BK = { default = 32, values = [32, 64] }
WM = { default = 64, values = [32, 64] }
WN = { default = 32, values = [16, 32, 64] }
STAGES = { default = 4, min = 2, max = 6 }
GROUP = { default = 8, values = [1, 4, 8, 16, 32] }
*/
#include "rows.cuh"
#include "slabs.cuh"

typedef unsigned short Half;  // the bits of a bfloat16 or float16
#if OUT == FLOAT32
typedef float Out;
#else
typedef Half Out;
#endif
struct alignas(2 * sizeof(Out)) Pair { Out x, y; };

constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = WARPS_M * WARPS_N * 32;
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8;

// Rows are 16 bytes longer than a multiple of 64, so that 8 rows, 16 bytes of each, lie in different banks.
struct Stage {
    static constexpr int A_PITCH = (A_DOWN ? BM : BK) + 8, B_PITCH = (B_ACROSS ? BN : BK) + 8;
    Half a_tile[A_DOWN ? BK : BM][A_PITCH];
    Half b_tile[B_ACROSS ? BK : BN][B_PITCH];
};

// Four matrices of 8×8 elements, whose rows begin at the addresses that each eight lanes give; each lane gets two elements of each.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const Half* from)
{
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(from)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(from)) : "memory");
}

__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b_0, unsigned b_1)
{
#if TYPE == BFLOAT16
#define TYPES "bf16.bf16"
#else
#define TYPES "f16.f16"
#endif
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPES ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_0), "r"(b_1));
}

__device__ __forceinline__ Out rounded(float x)
{
#if OUT == FLOAT32
    return x;
#else
    Half bits;
    if (OUT == BFLOAT16) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#endif
}

// One tile of C; A_WIDTH and B_WIDTH elements are copied at a time.
template <int A_WIDTH, int B_WIDTH>
__device__ __forceinline__ void multiply(const Half* a, const Half* b, Out* c, const Call& call, Stage* stages)
{
    const auto [top, left, z, product, first, length] = place_of_block(call);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int y = warp % WARPS_M * WM, x = warp / WARPS_M * WN;  // of the warp's tile

    // ---- GLOBAL → SHARED: the first stage is the short one ------------------------------------------------------------------
    Slab<Half, 1, BM, A_DOWN, A_WIDTH, THREADS, 8, A_DOWN ? Stage::A_PITCH : 1, A_DOWN ? 1 : Stage::A_PITCH, false> from_a(
        a + product * call.next_a + first * call.column_a, top, call.m, call.row_a, call.column_a);
    Slab<Half, 1, BN, B_ACROSS, B_WIDTH, THREADS, 8, B_ACROSS ? Stage::B_PITCH : 1, B_ACROSS ? 1 : Stage::B_PITCH, false> from_b(
        b + product * call.next_b + first * call.row_b, left, call.n, call.column_b, call.row_b);
    auto fetch = [&](Stage& stage, int steps) {
        from_a.copy(stage.a_tile[0], steps);
        from_b.copy(stage.b_tile[0], steps);
    };
    const int tiles = length > 0 ? (length - 1) / BK + 1 : 0;
    #pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) {
        if (tile < tiles) fetch(stages[tile], tile == 0 ? length - (tiles - 1) * BK : BK);
        copy_async_commit();
    }

    // ---- MULTIPLY -----------------------------------------------------------------------------------------------------------
    // Where the lane's row of an 8×8 matrix begins: of A four of 16 rows and 16 steps, of B four of 16 steps and 16 columns.
    const int row = A_DOWN ? lane % 8 + lane / 16 * 8 : lane % 16, next = A_DOWN ? lane / 8 % 2 * 8 : lane / 16 * 8;
    const int a_at = A_DOWN ? row * Stage::A_PITCH + y + next : (y + row) * Stage::A_PITCH + next;
    const int column = lane % 8 + lane / 16 * 8, step = lane / 8 % 2 * 8;
    const int b_at = B_ACROSS ? (lane % 8 + step) * Stage::B_PITCH + x + lane / 16 * 8 : (x + column) * Stage::B_PITCH + step;
    float sum[MMAS_M][MMAS_N][4] = {};
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // all parts of this stage have arrived, and all threads have read the stage before
        if (tile + STAGES - 1 < tiles) fetch(stages[(tile + STAGES - 1) % STAGES], BK);
        copy_async_commit();
        const Stage& stage = stages[tile % STAGES];
        #pragma unroll
        for (int i = 0; i < BK; i += 16) {
            unsigned of_a[MMAS_M][4], of_b[MMAS_N / 2][4];
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++)
                load_matrices<A_DOWN>(of_a[r], stage.a_tile[0] + a_at + (A_DOWN ? i * Stage::A_PITCH + r * 16 : r * 16 * Stage::A_PITCH + i));
            #pragma unroll
            for (int s = 0; s < MMAS_N / 2; s++)
                load_matrices<B_ACROSS>(of_b[s], stage.b_tile[0] + b_at + (B_ACROSS ? i * Stage::B_PITCH + s * 16 : s * 16 * Stage::B_PITCH + i));
            #pragma unroll
            for (int r = 0; r < MMAS_M; r++)
                #pragma unroll
                for (int s = 0; s < MMAS_N; s++) multiply_add(sum[r][s], of_a[r], of_b[s / 2][s % 2 * 2], of_b[s / 2][s % 2 * 2 + 1]);
        }
    }

    // ---- REGISTERS → GLOBAL -------------------------------------------------------------------------------------------------
    c += z * call.next_c;
    auto pair = [&](int r, int s) {
        return Pair{ rounded(sum[r / 2][s][r % 2 * 2]), rounded(sum[r / 2][s][r % 2 * 2 + 1]) };
    };
    if (call.column_c != 1) {
        #pragma unroll
        for (int r = 0; r < MMAS_M * 2; r++)
            #pragma unroll
            for (int s = 0; s < MMAS_N; s++) {
                const int i = top + y + r * 8 + lane / 4, j = left + x + s * 8 + lane % 4 * 2;
                if (i >= call.m || j >= call.n) continue;
                const Pair two = pair(r, s);
                Out* to = c + i * call.row_c + j * call.column_c;
                to[0] = two.x;
                if (j + 1 < call.n) to[call.column_c] = two.y;
            }
        return;
    }
    constexpr int PITCH = WN + 16 / sizeof(Out);  // rows lie in different banks
    static_assert(sizeof(Stage) * STAGES >= WARPS_M * WARPS_N * 8 * PITCH * sizeof(Out), "eight rows of all warps");
    __syncthreads();  // all have read the last stage
    Out* rows = (Out*)stages + warp * (8 * PITCH);
    #pragma unroll
    for (int r = 0; r < MMAS_M * 2; r++) {
        #pragma unroll
        for (int s = 0; s < MMAS_N; s++) *(Pair*)(rows + lane / 4 * PITCH + s * 8 + lane % 4 * 2) = pair(r, s);
        __syncwarp();
        const int row = top + y + r * 8, col = left + x;
        store_rows<8, WN, PITCH>(rows, c + row * call.row_c + col, call.row_c, call.m - row, call.n - col);
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
mma(const Half* a, const Half* b, Out* c, const __grid_constant__ Given given)
{
    const Call& call = call_of_block(a, b, c, given);
    extern __shared__ __align__(16) unsigned char memory[];
    Stage* stages = (Stage*)memory;
    // A copy of several elements must end where the operand does.
    constexpr int A_MOST = A_VECTOR / 2, B_MOST = B_VECTOR / 2;
    const bool a_whole = (A_DOWN ? call.m : call.k) % A_MOST == 0, b_whole = (B_ACROSS ? call.n : call.k) % B_MOST == 0;
    if (a_whole && b_whole) multiply<A_MOST, B_MOST>(a, b, c, call, stages);
    else if (a_whole) multiply<A_MOST, 1>(a, b, c, call, stages);
    else if (b_whole) multiply<1, B_MOST>(a, b, c, call, stages);
    else multiply<1, 1>(a, b, c, call, stages);
}
