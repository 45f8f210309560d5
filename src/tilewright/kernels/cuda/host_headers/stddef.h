// For nvcc and its host compiler; NVRTC declares what a kernel uses of it by itself.
