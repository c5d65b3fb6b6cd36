// The records that are made while a region runs.
#pragma once

namespace simgrad::sim::plan {

struct Records {
  bool decides = false;  // tests, runs and events
  bool looks = false;    // non-finite results
  bool ranges = false;   // underflows and overflows of narrowing casts
};

}  // namespace simgrad::sim::plan
