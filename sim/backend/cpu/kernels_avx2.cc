// The kernels for AVX2 with F16C; see kernels.inc.
#define SIMGRAD_CPU_ISA_NAME "avx2"
#define SIMGRAD_CPU_PRECISION precision_avx2
#define SIMGRAD_CPU_KERNELS Avx2Kernels
#include "sim/backend/cpu/kernels.inc"
