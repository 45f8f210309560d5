// explain blend: --grid 2 --block 32 --arg a:float32:64 --arg b:float32:64 --arg "w:float32:2:array([0.25, 0.75])" --expect "b = 0.25 * a + 0.75 * b"
#include <sstream>

struct Weights {
    float a, b;
    Weights(float a, float b) : a{a}, b(b) {}
    std::string words() const { return std::to_string(a); }
    __host__ __device__ float of(float x, float y) const { return a * x + b * y; }
};

struct Options {
    std::string name;
    int blocks = 2;
};

#ifdef OLD
void report(int blocks) {
#else
void report(Options options) {
    int blocks = options.blocks;
#endif
    printf("%d\n", blocks);
}

class Timer {
public:
    Timer() : start(0) { cudaEventCreate(&event); }
    ~Timer();

private:
    cudaEvent_t event;
    long start;
};

Timer::~Timer() { cudaEventDestroy(event); }

extern "C" __global__ void blend(const float* a, float* b, Weights weights)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    b[i] = weights.of(a[i], b[i]);
}

extern "C" {
void run(Options options);
}

namespace app {
namespace {
void run(Options options, float* a, float* b) { blend<<<options.blocks, 32>>>(a, b, {0.5f, 0.5f}); }
}
}
