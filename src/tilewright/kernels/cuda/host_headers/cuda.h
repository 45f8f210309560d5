#pragma once
// For nvcc and its host compiler; of the driver's types a kernel uses this one.
typedef struct alignas(64) CUtensorMap_st {
    unsigned long long opaque[16];
} CUtensorMap;
