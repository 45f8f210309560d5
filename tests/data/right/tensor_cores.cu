#include <cuda_fp16.h>
// C (16 × 8) = A (16 × k) · B (k × 8) by one warp with tensor cores; A arrives by cp.async in two stages, rows of 16 halves.
extern "C" __global__ void k(const half* a, const half* b, float* c, int m, int n, int k) {
  __shared__ __align__(16) half a_tile[2][16][16];
  int lane = threadIdx.x;
  float d[4] = {0, 0, 0, 0};
  unsigned to = __cvta_generic_to_shared(&a_tile[0][lane / 2][lane % 2 * 8]);
  const half* from = a + lane / 2 * k + lane % 2 * 8;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
  asm volatile("cp.async.commit_group;");
  for (int t = 0; t < k / 16; t++) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    if (t + 1 < k / 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to + (t + 1) % 2 * 512), "l"(from + (t + 1) * 16) : "memory");
    asm volatile("cp.async.commit_group;");
    unsigned x[4], y[2];
    unsigned at = __cvta_generic_to_shared(&a_tile[t % 2][lane % 16][lane / 16 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at) : "memory");
    for (int i = 0; i < 2; i++) {
      half2 pair = __halves2half2(b[(t * 16 + lane % 4 * 2 + 8 * i) * n + lane / 4], b[(t * 16 + lane % 4 * 2 + 1 + 8 * i) * n + lane / 4]);
      y[i] = *(unsigned*)&pair;
    }
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  }
  for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * n + lane % 4 * 2 + i % 2] = d[i];
}
