// nvcc 13.0: -ptx -arch=compute_90
typedef float (*Op)(float, float);
typedef float (*One)(float);
__device__ __noinline__ float add(float a, float b) { return a + b; }
__device__ __noinline__ float mul(float a, float b) { return a * b; }
__device__ __noinline__ float half_of(float a) { return 0.5f * a; }
__device__ Op table[2] = {add, mul};
__constant__ Op constants[2] = {mul, add};
__device__ One one = half_of;

struct Shape { __device__ virtual float area(float) = 0; float k; };
struct Square : Shape { __device__ float area(float x) override { return x * x * k; } };
struct Line : Shape { __device__ float area(float x) override { return x + k; } };

// Every lane another function, from both tables.
extern "C" __global__ void tables(float* out, const float* a, const float* b) {
  int i = threadIdx.x;
  out[i] = table[i & 1](a[i], b[i]) + 100.f * constants[i >> 1 & 1](a[i], b[i]);
}
// A pointer that the host gives.
extern "C" __global__ void given(float* out, const float* a, int which, Op other) {
  Op op = which == 0 ? add : which == 1 ? mul : other;
  int i = threadIdx.x;
  out[i] = op(a[i], 2.f);
}
extern "C" __global__ void address(Op* out, int which) { *out = which ? (Op)one : table[0]; }
extern "C" __global__ void methods(float* out, const float* a) {
  int i = threadIdx.x;
  Square square; square.k = 3.f;
  Line line; line.k = 5.f;
  Shape* shape = i % 3 ? (Shape*)&square : (Shape*)&line;
  out[i] = shape->area(a[i]);
}
