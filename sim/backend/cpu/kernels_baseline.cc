// The kernels for the processor every build supports; see kernels.inc.
#define SIMGRAD_CPU_ISA_NAME "baseline"
#define SIMGRAD_CPU_PRECISION precision_baseline
#define SIMGRAD_CPU_KERNELS BaselineKernels
#include "sim/backend/cpu/kernels.inc"
