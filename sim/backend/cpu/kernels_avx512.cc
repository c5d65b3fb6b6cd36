// The kernels for AVX-512 F, BW, DQ and VL; see kernels.inc.
#define SIMGRAD_CPU_ISA_NAME "avx512"
#define SIMGRAD_CPU_PRECISION precision_avx512
#define SIMGRAD_CPU_KERNELS Avx512Kernels
#include "sim/backend/cpu/kernels.inc"
