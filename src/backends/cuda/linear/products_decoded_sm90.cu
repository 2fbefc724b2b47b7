// The products of decoded weights for Hopper alone.
#include "backends/cuda/linear/gemm_decoded_sm90.cuh"
