// y = the first rows of STEPS matrices, each of other sizes, that one tensor map describes in turn: the kernel edits the map in
// shared memory, copies it to global memory, and loads a box through it.
#define REPLACE(field, type, letter, ordinal, value) asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0]" ordinal ", %1;" :: "r"(sm(edited)), letter(value) : "memory")

template <int D> DEV void run(const TensorMap& first, const float* x, u64* maps, float* y)
{
    __shared__ alignas(128) u64 edited[16];
    __shared__ alignas(128) float box[4][32];
    __shared__ u64 loaded;
    const int t = threadIdx.x;
    if (t == 0) {
        INIT(&loaded, 1);
        FENCE_INIT();
    }
    if (t < 16) edited[t] = first.opaque[t];
    __syncwarp();
    #pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        if (t == 0) {  // step + 1 rows of 32 numbers, behind those of the matrices before
            REPLACE("global_address", "b64", "l", "", (u64)(x + step * (step + 1) / 2 * 32));
            REPLACE("global_dim", "b32", "r", ", 1", step + 1);
        }
        __syncwarp();
        if (D == NO_RELEASE) {
            if (t < 16) maps[t] = edited[t];
        } else {
            asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" :: "l"(maps), "r"(sm(edited)) : "memory");
        }
        __syncwarp();
        if (t == 0) {
            if (D != NO_ACQUIRE) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(maps) : "memory");
            ARRIVE_EXPECT(&loaded, (u32)sizeof box);
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(sm(box)), "l"(maps), "r"(0), "r"(0), "r"(sm(&loaded)) : "memory");  // !! missing fence: NO_RELEASE NO_ACQUIRE
        }
        WAIT(&loaded, step & 1);
        for (int row = 0; row < 4; row++) y[(step * 4 + row) * 32 + t] = box[row][t];
        __syncwarp();
    }
}
