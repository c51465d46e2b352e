// A CUDA program that fails in one way: `crash MODE`. Prints what the runtime answers.
//
// Every kernel gets one buffer of zeros, and takes bad addresses from it at run time, so that the
// compiler does not see them.
#include <cassert>
#include <cstdio>
#include <cstring>
#include <vector>
#include <unistd.h>

__global__ void illegal(int *zeros) { ((volatile int *)0x7fffdeadbeef00ull)[threadIdx.x] = 1; }

__global__ void null_write(int *zeros) {
    volatile int *nowhere = (int *)(unsigned long long)((volatile int *)zeros)[0];
    nowhere[threadIdx.x] = 1;
}

__global__ void misaligned(int *zeros) { *(volatile int *)((char *)zeros + 1) = 1; }

__global__ void fails_assert(int *zeros) { assert(((volatile int *)zeros)[0] == 42); }

__device__ __noinline__ int descend(volatile int *zeros, int depth) {
    volatile int frame[64];
    for (int i = 0; i < 64; i++) frame[i] = depth + i;
    return zeros[0] == 12345 ? 0 : descend(zeros, depth + 1) + frame[depth & 63];
}

__global__ void recursion(int *zeros) { zeros[1] = descend(zeros, 0); }

__global__ void shared_beyond_end(int *zeros) {
    __shared__ int room[32];
    room[threadIdx.x] = 1;
    int far = (1 << 24) + ((volatile int *)zeros)[0];
    volatile int *beyond = room;
    beyond[far + threadIdx.x] = 7;
    zeros[threadIdx.x] = beyond[far / 2];
}

__global__ void traps(int *zeros) { asm volatile("trap;"); }

__global__ void spins(int *zeros) {
    while (((volatile int *)zeros)[0] == 0) { }
    zeros[1] = 1;
}

static void say(const char *what, cudaError_t error) {
    printf("%s: %d %s: %s\n", what, (int)error, cudaGetErrorName(error), cudaGetErrorString(error));
    fflush(stdout);
}

// Allocates until nothing is left, and gives it back.
static void exhaust_memory() {
    std::vector<void *> blocks;
    size_t step = 1ull << 30, got = 0;
    cudaError_t error = cudaSuccess;
    while (step >= (1ull << 20)) {
        void *block = nullptr;
        error = cudaMalloc(&block, step);
        if (error == cudaSuccess) {
            blocks.push_back(block);
            got += step;
        } else {
            step /= 8;
        }
    }
    printf("allocated %.2f GiB, then ", got / 1073741824.0);
    say("oom", error);
    cudaGetLastError();
    for (void *block : blocks) cudaFree(block);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "none";
    printf("pid %d mode %s\n", (int)getpid(), mode);
    int *zeros = nullptr;
    say("malloc", cudaMalloc(&zeros, 1 << 20));
    cudaMemset(zeros, 0, 1 << 20);
    say("ready", cudaDeviceSynchronize());
    if (!strcmp(mode, "illegal")) illegal<<<1, 32>>>(zeros);
    else if (!strcmp(mode, "null")) null_write<<<1, 32>>>(zeros);
    else if (!strcmp(mode, "misaligned")) misaligned<<<1, 1>>>(zeros);
    else if (!strcmp(mode, "assert")) fails_assert<<<1, 1>>>(zeros);
    else if (!strcmp(mode, "recursion")) recursion<<<1, 1>>>(zeros);
    else if (!strcmp(mode, "shared")) shared_beyond_end<<<1, 32>>>(zeros);
    else if (!strcmp(mode, "trap")) traps<<<1, 1>>>(zeros);
    else if (!strcmp(mode, "oom")) exhaust_memory();
    else if (!strcmp(mode, "spin")) {
        spins<<<1, 1>>>(zeros);
        printf("RUNNING\n");
    }
    say("launch", cudaGetLastError());
    say("sync", cudaDeviceSynchronize());
    say("after", cudaFree(zeros));
    return 0;
}
