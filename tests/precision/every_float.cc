// Checks the functions of f32 at every argument, and those of two operands at every pair of bf16 and
// of f16. Not a test of the normal run: about a minute a function.
//
// usage: every_float [FUNCTION...] [--hard FILE]     default: all functions
// FILE gets the hard arguments with their results, as tests/data/hard_floats.txt keeps them.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/precision/narrow_functions.h"
#include "tests/precision/pair_check.h"

namespace simgrad::precision {
namespace {

bool CheckFunction(const NarrowFunction& function, std::FILE* file) {
  FloatCheck check(function);
  for (uint64_t first = 0; first < uint64_t{1} << 32; first += FloatCheck::kPiece) {
    check.Piece([first](int i) { return static_cast<uint32_t>(first) + static_cast<uint32_t>(i); });
  }
  std::printf("%-9s f32: 4294967296 arguments, %zu hard, %zu wrong; %lld differ from f64 rounded\n",
              function.name, check.hard().size(), check.wrong().size(),
              static_cast<long long>(check.differing()));
  for (uint32_t x : check.wrong()) std::printf("  wrong at %08x\n", x);
  std::fflush(stdout);
  if (file != nullptr) {
    for (const FloatCheck::Hard& hard : check.hard()) {
      std::fprintf(file, "%s %08x %08x\n", function.name, hard.argument, hard.result);
    }
  }
  return check.wrong().empty();
}

template <Format F>
bool CheckPairs(const PairFunction<F>& function) {
  PairCheck<F> check(function);
  for (uint32_t a = 0; a < 65536; ++a) check.Row(static_cast<uint16_t>(a));
  std::printf("%-9s %s: 4294967296 pairs, %lld asked of MPFR, %lld wrong; %lld differ from f64\n",
              function.name, FormatName(F).data(), static_cast<long long>(check.asked()),
              static_cast<long long>(check.wrong()), static_cast<long long>(check.differing()));
  std::fflush(stdout);
  return check.wrong() == 0;
}

int Main(int count, char** arguments) {
  std::vector<std::string> names;
  std::FILE* file = nullptr;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "--hard") == 0 && i + 1 < count) {
      file = std::fopen(arguments[++i], "w");
      if (file == nullptr) return 2;
    } else {
      names.emplace_back(arguments[i]);
    }
  }
  const auto wants = [&names](const char* name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  bool is_right = true;
  for (const NarrowFunction& function : kNarrowFunctions) {
    if (wants(function.name)) is_right &= CheckFunction(function, file);
  }
  if (file != nullptr) std::fclose(file);
  if (wants("Pow")) is_right &= CheckPairs(kPowOfBf16) && CheckPairs(kPowOfF16);
  if (wants("Atan2")) is_right &= CheckPairs(kAtan2OfBf16) && CheckPairs(kAtan2OfF16);
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace simgrad::precision

int main(int count, char** arguments) { return simgrad::precision::Main(count, arguments); }
