// Small kernels whose hardware counters the microscope must predict. Every kind of access to memory, in patterns with
// known and with disputed costs; each access that matters is alone on its line, so that lines can be compared.
// tests/twelve_kernels.py has the launches and the right answers.

typedef unsigned int word;

#define AT(pointer) static_cast<word>(__cvta_generic_to_shared(pointer))
#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#define ROLLED _Pragma("unroll 1")

// ---- global memory ---------------------------------------------------------------------------------------------------

extern "C" __global__ void strided_read(const float* x, float* y, int stride) {
  y[THREAD] = x[THREAD * stride];
}

// Vectors that begin in the middle of a sector: 8 and 16 bytes past it.
extern "C" __global__ void misaligned_read(const float* x, float* y) {
  float2 a = reinterpret_cast<const float2*>(x + 2)[THREAD];
  float4 b = reinterpret_cast<const float4*>(x + 4)[THREAD];
  y[THREAD] = a.x + a.y + b.x + b.y + b.z + b.w;
}

// Of each warp, the lanes with a bit set in mask.
extern "C" __global__ void some_lanes(const float* x, float* y, word mask) {
  if (mask >> (threadIdx.x % 32) & 1)
    y[2 * THREAD] = x[THREAD];
}

// Each thread's own array, indexed at run time: local memory.
extern "C" __global__ void local_array(const int* x, int* y) {
  int mine[16];
  for (int i = 0; i < 16; ++i)
    mine[(i * 5 + x[THREAD]) & 15] = i * x[THREAD];
  int sum = 0;
#pragma unroll 1
  for (int i = 0; i < 4; ++i)
    sum += mine[(x[THREAD] + i * threadIdx.x) & 15];
  y[THREAD] = sum;
}

extern "C" __global__ void global_atomics(int* y, int* old) {
  atomicAdd(&y[THREAD], 3);
  atomicMax(&y[256 + 4 * (THREAD % 64)], static_cast<int>(threadIdx.x));
  atomicAdd(&y[512 + threadIdx.x % 2], static_cast<int>(threadIdx.x));
  old[THREAD] = atomicExch(&y[1024 + 8 * THREAD], 7);
}

// ---- shared memory: transposing a tile --------------------------------------------------------------------------------

#define TRANSPOSE(name, columns, place)                                                       \
  extern "C" __global__ void name(const float* x, float* y, int n) {                          \
    __shared__ float tile[32 * (columns)];                                                    \
    int column = threadIdx.x % 32, row = threadIdx.x / 32;                                    \
    for (int i = 0; i < 32; i += 8)                                                           \
      tile[place(row + i, column)] = x[(blockIdx.y * 32 + row + i) * n + blockIdx.x * 32 + column]; \
    __syncthreads();                                                                          \
    for (int i = 0; i < 32; i += 8)                                                           \
      y[(blockIdx.x * 32 + row + i) * n + blockIdx.y * 32 + column] = tile[place(column, row + i)]; \
  }
#define PLAIN(r, c) ((r) * 32 + (c))
#define PADDED(r, c) ((r) * 33 + (c))
#define SWIZZLED(r, c) ((r) * 32 + ((c) ^ (r)))

TRANSPOSE(transpose_plain, 32, PLAIN)
TRANSPOSE(transpose_padded, 33, PADDED)
TRANSPOSE(transpose_swizzled, 32, SWIZZLED)

// ---- shared memory: wide, narrow and masked ---------------------------------------------------------------------------

__device__ float sum(float2 v) { return v.x + v.y; }
__device__ float sum(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// y[8 * thread + i] is the sum of what pattern i read; box[j] = x[j]. 64 threads.
extern "C" __global__ void loads_64(const float* x, float* y) {
  __shared__ __align__(16) float box[2048];
  ROLLED for (int i = threadIdx.x; i < 2048; i += 64) box[i] = x[i];
  __syncthreads();
  const float2* pair = reinterpret_cast<const float2*>(box);
  float* out = y + 8 * THREAD;
  int t = threadIdx.x, lane = t % 32;
  out[0] = sum(pair[t]);                                    // one after the other
  out[1] = sum(pair[t / 2]);                                // neighbours agree
  out[2] = sum(pair[t & ~2]);                               // lane and lane ^ 2 agree
  out[3] = sum(pair[2 * t]);                                // every second
  out[4] = sum(pair[16 * lane]);                            // one bank pair for all
  out[5] = sum(pair[lane < 16 ? lane / 2 : lane]);          // neighbours agree in one half warp only
  if (lane < 20) out[6] = sum(pair[3 * lane]);              // 20 lanes
  if (lane % 2) out[7] = sum(pair[lane]);                   // every second lane
}

// The same with 16 bytes a lane; y[16 * thread + i].
extern "C" __global__ void loads_128(const float* x, float* y) {
  __shared__ __align__(16) float box[4096];
  ROLLED for (int i = threadIdx.x; i < 4096; i += 64) box[i] = x[i];
  __syncthreads();
  const float4* four = reinterpret_cast<const float4*>(box);
  float* out = y + 16 * THREAD;
  int t = threadIdx.x, lane = t % 32;
  out[0] = sum(four[t]);
  out[1] = sum(four[lane / 2]);
  out[2] = sum(four[lane & ~2]);
  out[3] = sum(four[2 * t]);
  out[4] = sum(four[8 * lane]);
  out[5] = sum(four[lane < 16 ? lane / 2 : lane]);          // the first half warp merges, the second does not
  out[6] = sum(four[lane < 16 ? lane / 2 : lane & ~2]);     // each half merges in its own way
  out[7] = sum(four[lane < 8 ? lane / 2 : lane]);           // a quarter alone
  if (lane < 12) out[8] = sum(four[3 * lane]);              // 12 lanes
  if (lane % 2) out[9] = sum(four[lane]);                   // every second lane
  if (lane % 3) out[10] = sum(four[lane / 2]);              // neighbours agree where both are there
  if (lane == 9) out[11] = sum(four[lane]);                 // one lane
  if (lane < 16) out[12] = sum(four[lane / 4 * 8]);         // half a warp, four at a time
  out[13] = sum(four[t / 64]);                              // all the same
}

// Stores of 8 and 16 bytes; what is there at the end goes to y.
extern "C" __global__ void wide_stores(float* y) {
  __shared__ __align__(16) float box[4096];
  ROLLED for (int i = threadIdx.x; i < 4096; i += 64) box[i] = 0;
  __syncthreads();
  float2* pair = reinterpret_cast<float2*>(box);
  float4* four = reinterpret_cast<float4*>(box);
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  float v = t;
  pair[t] = make_float2(v, 1);                              // words 0 to 127
  pair[64 + 2 * t] = make_float2(v, 2);                     // every second, to 383
  four[96 + t] = make_float4(v, 3, 3, 3);                   // to 639
  four[160 + 2 * t] = make_float4(v, 4, 4, 4);              // to 1151
  four[288 + 8 * lane + warp] = make_float4(v, 5, 5, 5);    // eight banks apart: 128 bytes, to 2175
  if (lane < 12) four[544 + t] = make_float4(v, 6, 6, 6);   // to 2431
  if (lane % 4 == 1) four[608 + t] = make_float4(v, 7, 7, 7);  // to 2687
  if (lane < 20) pair[1344 + 16 * lane + warp] = make_float2(v, 8);  // from 2688
  __syncthreads();
  ROLLED for (int i = threadIdx.x; i < 4096; i += 64) y[blockIdx.x * 4096 + i] = box[i];
}

// Everyone reads the same row: one word, or what ptxas makes of neighbouring words.
extern "C" __global__ void broadcast(const float* x, float* y) {
  __shared__ __align__(16) float row[32];
  if (threadIdx.x < 32) row[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  float s = 0;
  for (int i = 0; i < 32; ++i) s += row[i];
  y[THREAD] = s;
}

// 1 and 2 bytes a lane.
extern "C" __global__ void narrow(const unsigned char* x, int* y) {
  __shared__ __align__(16) unsigned char bytes[4096];
  __shared__ __align__(16) unsigned short halves[2048];
  int t = threadIdx.x;
  ROLLED for (int i = t; i < 4096; i += 64) bytes[i] = x[i];
  ROLLED for (int i = t; i < 2048; i += 64) halves[i] = x[i] * 3;
  __syncthreads();
  int* out = y + 8 * THREAD;
  out[0] = bytes[t];
  out[1] = bytes[2 * t + 1];
  out[2] = bytes[64 * t];                                   // one bank of two
  out[3] = bytes[128 * (t % 16) + t / 16];                  // different bytes of words in one bank
  out[4] = halves[t];
  out[5] = halves[32 * t];
  out[6] = halves[64 * (t % 8) + t / 32];
  if (t % 2) out[7] = halves[t / 2];
}

extern "C" __global__ void shared_atomics(int* y, int* old) {
  __shared__ int bins[1024];
  ROLLED for (int i = threadIdx.x; i < 1024; i += 128) bins[i] = 0;
  __syncthreads();
  int t = threadIdx.x, lane = t % 32;
  atomicAdd(&bins[t], t + 1);                               // each its own
  atomicAdd(&bins[128 + 2 * lane], t + 1);                  // two addresses in a bank
  atomicAdd(&bins[256 + 32 * (t % 2)], t + 1);              // two addresses in a bank, sixteen lanes each
  atomicMax(&bins[512], t + 1);                             // one address
  if (lane < 5) atomicAdd(&bins[520 + 32 * lane], t + 1);   // five lanes, one bank
  old[THREAD] = atomicExch(&bins[700 + t], t);              // the old value is used
  __syncthreads();
  ROLLED for (int i = threadIdx.x; i < 1024; i += 128) y[blockIdx.x * 1024 + i] = bins[i];
}

// ---- copies past the registers ----------------------------------------------------------------------------------------

#define COPY(cache, nbytes, into, from) \
  asm volatile("cp.async." cache ".shared.global [%0], [%1], %2;" ::"r"(AT(into)), "l"(from), "n"(nbytes) : "memory")

// Where it goes: one after the other; 32 bytes apart; 128 bytes apart in 64 threads.
extern "C" __global__ void async_copies(const float* x, float* y) {
  __shared__ __align__(16) float box[8192];
  int t = threadIdx.x;
  ROLLED for (int i = t; i < 8192; i += 64) box[i] = 0;
  __syncthreads();
  COPY("ca", 4, &box[t], &x[t]);
  COPY("ca", 4, &box[64 + 8 * t], &x[64 + t]);
  COPY("ca", 8, &box[640 + 2 * t], &x[128 + 2 * t]);
  COPY("ca", 8, &box[768 + 8 * t], &x[256 + 4 * t]);
  COPY("ca", 16, &box[1280 + 4 * t], &x[512 + 4 * t]);
  COPY("ca", 16, &box[1536 + 32 * t], &x[768 + 4 * t]);
  COPY("cg", 16, &box[3584 + 4 * t], &x[1024 + 4 * t]);
  COPY("cg", 16, &box[3840 + 8 * t], &x[1280 + 8 * t]);
  COPY("cg", 16, &box[4352 + 32 * t], &x[1792 + 4 * t]);
  if (t % 32 < 10) COPY("ca", 4, &box[6400 + t], &x[2048 + t]);
  if (t % 32 < 10) COPY("cg", 16, &box[6464 + 4 * t], &x[2112 + 4 * t]);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  ROLLED for (int i = t; i < 8192; i += 64) y[blockIdx.x * 8192 + i] = box[i];
}

// ---- matrices of 8 × 8 halves -----------------------------------------------------------------------------------------

#define LOAD1(what, a, at) asm volatile("ldmatrix.sync.aligned.m8n8.x1" what ".shared.b16 {%0}, [%1];" : "=r"(a) : "r"(at))
#define LOAD2(what, a, b, at) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x2" what ".shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(at))
#define LOAD4(what, a, b, c, d, at)                                              \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" what ".shared.b16 {%0, %1, %2, %3}, [%4];" \
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at))

// Rows of 16 bytes: packed (no two rows of a matrix share a bank), 80 bytes apart (padded), 64 and 128 apart (conflicts).
extern "C" __global__ void matrix_loads(const unsigned short* x, word* y) {
  __shared__ __align__(16) unsigned short box[4096];
  int t = threadIdx.x, lane = t % 32;
  ROLLED for (int i = t; i < 4096; i += 64) box[i] = x[i];
  __syncthreads();
  word r[20];
  LOAD1("", r[0], AT(&box[8 * lane]));
  LOAD1("", r[1], AT(&box[64 * lane]));
  LOAD2("", r[2], r[3], AT(&box[40 * lane]));
  LOAD2("", r[4], r[5], AT(&box[32 * lane]));
  LOAD4("", r[6], r[7], r[8], r[9], AT(&box[8 * lane]));
  LOAD4("", r[10], r[11], r[12], r[13], AT(&box[64 * lane]));
  LOAD4(".trans", r[14], r[15], r[16], r[17], AT(&box[32 * lane]));
  LOAD2(".trans", r[18], r[19], AT(&box[8 * (lane / 2)]));
  for (int i = 0; i < 20; ++i) y[i * 128 + THREAD] = r[i];
}

extern "C" __global__ void matrix_stores(word* y) {
  __shared__ __align__(16) unsigned short box[8192];
  int t = threadIdx.x, lane = t % 32;
  ROLLED for (int i = t; i < 4096; i += 32) reinterpret_cast<word*>(box)[i] = 0;
  __syncwarp();
  word a = t << 16 | 1, b = t << 16 | 2, c = t << 16 | 3, d = t << 16 | 4;
  word packed = AT(&box[8 * lane]), padded = AT(&box[256 + 40 * lane]), apart = AT(&box[2048 + 64 * lane]);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(packed), "r"(a), "r"(b), "r"(c), "r"(d));
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(padded), "r"(a), "r"(b));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(apart), "r"(a), "r"(b), "r"(c), "r"(d));
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(apart + 8192), "r"(a));
  __syncwarp();
  ROLLED for (int i = t; i < 4096; i += 32) y[blockIdx.x * 4096 + i] = reinterpret_cast<word*>(box)[i];
}

// C (16 × 8) = A (16 × 16) · B (8 × 16, transposed) of halves, fragments read word by word from rows of 24 halves.
extern "C" __global__ void mma_padded(const word* a, const word* b, float* c) {
  __shared__ word A[16 * 12], B[8 * 12];
  int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  ROLLED for (int i = lane; i < 128; i += 32) A[i / 8 * 12 + i % 8] = a[blockIdx.x * 128 + i];
  ROLLED for (int i = lane; i < 64; i += 32) B[i / 8 * 12 + i % 8] = b[blockIdx.x * 64 + i];
  __syncwarp();
  word a0 = A[group * 12 + member];
  word a1 = A[(group + 8) * 12 + member];
  word a2 = A[group * 12 + member + 4];
  word a3 = A[(group + 8) * 12 + member + 4];
  word b0 = B[group * 12 + member];
  word b1 = B[group * 12 + member + 4];
  float d0, d1, d2, d3;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
               : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
  float2* row = reinterpret_cast<float2*>(c + blockIdx.x * 128 + group * 8 + member * 2);
  row[0] = make_float2(d0, d1);
  row[32] = make_float2(d2, d3);
}
