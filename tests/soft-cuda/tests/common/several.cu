// nvcc 13.0: -fatbin -gencode arch=compute_80,code=[sm_80,compute_80]
// -gencode arch=compute_90,code=compute_90
// -gencode arch=compute_100,code=compute_100, and -fatbin -arch=sm_90 alone.
extern "C" __global__ void which(int* out) { *out = __CUDA_ARCH__; }
