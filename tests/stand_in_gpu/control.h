// What a test asks of the stand-in driver beyond the CUDA functions; found with dlsym.
#pragma once

#include <cstdint>

#include "tests/stand_in_gpu/machine.h"

namespace simgrad::stand_in {

struct Report {
  int64_t calls = 0;  // that could have failed, since the last reset
  int64_t held_bytes = 0;
  int64_t kept_bytes = 0;  // by the pools, for the next request
  int64_t pinned_bytes = 0;
  int64_t events = 0;       // not destroyed
  bool whole = true;        // nothing was written past an end or after a free
  const char* failed = "";  // the call that was made to fail
};

}  // namespace simgrad::stand_in

extern "C" {
// As after a restart of the process, with other settings; nothing of before may be used any more.
void simgrad_stand_in_reset(const simgrad::stand_in::Settings* settings);
simgrad::stand_in::Report simgrad_stand_in_report();
}
