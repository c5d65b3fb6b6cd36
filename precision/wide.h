// Marks functions that are built for several kinds of processors: vectors are as wide as they can
// be, and the results are the same.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMGRAD_WIDE [[gnu::target_clones("default", "avx2", "avx512f")]]
#else
#define SIMGRAD_WIDE
#endif
