// The scalar functions of plans as bitcode, kept in the binary (scalar_module.h).
#include "sim/backend/scalars.h"
