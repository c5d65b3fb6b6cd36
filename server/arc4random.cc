// arc4random for a server that is linked with LLVM's archives: glibc has it from 2.36 on only, and nothing else asks
// for more than 2.35. LLVM names temporary files by it.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" uint32_t arc4random() noexcept {
  uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) std::abort();
  return number;
}
