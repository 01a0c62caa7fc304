extern "C" __global__ void spin(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

__device__ float total(float4 part)
{
    return (part.x + part.y) + (part.z + part.w);
}

// Whole waves of blocks that all go through the buffer together, LOADS independent loads of a thread in flight. The sum
// is written where it is negative, which no sum of what the buffers hold is: or the compiler would leave the loads out.
extern "C" __global__ void __launch_bounds__(THREADS)
read(const float4* __restrict__ source, size_t count, float* out)
{
    constexpr int LOADS = 4;
    const size_t step = size_t(gridDim.x) * THREADS;
    size_t i = size_t(blockIdx.x) * THREADS + threadIdx.x;
    float sum = 0;
    for (; i + (LOADS - 1) * step < count; i += LOADS * step) {
        float4 part[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            part[k] = source[i + k * step];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            sum += total(part[k]);
    }
    for (; i < count; i += step)
        sum += total(source[i]);
    if (sum < 0)
        *out = sum;
}
