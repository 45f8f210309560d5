// Copies rows of bytes from any address to rows that begin at multiples of 4 bytes. A thread makes words of the target: each from the
// two words of the source that it lies in, so that all accesses are whole words and those of a warp follow each other.

constexpr int WORDS = 8, THREADS = 256;  // of a thread at once: all their loads are under way together

extern "C" __global__ void __launch_bounds__(THREADS)
copy_rows(const unsigned char* from, unsigned char* to, long long rows, long long bytes, long long from_step, long long to_step)
{
    const unsigned char* end = from + (rows - 1) * from_step + bytes;
    const int words = (int)((bytes + 3) / 4), across = (words - 1) / (WORDS * 32) + 1;  // parts of a row, each of one warp
    const long long warp = (blockIdx.x * (long long)THREADS + threadIdx.x) / 32, warps = gridDim.x * (THREADS / 32);
    for (long long part = warp; part < rows * across; part += warps) {
        const long long row = part / across;
        const int first = (int)(part - row * across) * (WORDS * 32) + threadIdx.x % 32;
        const unsigned char* source = from + row * from_step;
        unsigned* target = (unsigned*)(to + row * to_step);
        const int shift = (unsigned long long)source % 4;
        const unsigned* aligned = (const unsigned*)(source - shift);
        // Words of the source that lie wholly in the matrix; those around it may not be read.
        const int least = (const unsigned char*)aligned < from;
        const int most = (int)min((long long)(end - (const unsigned char*)aligned) / 4 - 1, (long long)words);

        unsigned low[WORDS] = {}, high[WORDS] = {};
        if (most >= least)
            #pragma unroll
            for (int i = 0; i < WORDS; i++) {
                const int at = first + i * 32;
                low[i] = aligned[max(least, min(at, most))];
                high[i] = aligned[max(least, min(at + 1, most))];
            }
        #pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const int at = first + i * 32;
            if (at >= words) break;
            unsigned word = __funnelshift_r(low[i], high[i], 8 * shift);
            if (at < least || at + (shift > 0) > most) {  // the first or the last word of the matrix, byte by byte
                word = 0;
                #pragma unroll
                for (int j = 0; j < 4; j++)
                    if (at * 4ll + j < bytes) word |= (unsigned)source[at * 4ll + j] << 8 * j;
            }
            target[at] = word;
        }
    }
}
