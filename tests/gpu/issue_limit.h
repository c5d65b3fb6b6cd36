// The fastest that a kernel's loop can be issued, counted from its disassembly.
//
// Maths: a scheduler issues one warp instruction per cycle, and a pipe takes one every so many (the
//   throughput table of the CUDA C++ Programming Guide, "Arithmetic Instructions", compute
//   capability 9.0, divided by 4 schedulers). The limit is the larger of all instructions and of
//   each pipe's. Latencies, memory and dependencies only make it slower.
// Errors: INVALID_ARGUMENT for a listing in which the loops are not found. Threads: pure.
// Source: CUDA C++ Programming Guide 12.6, table "Throughput of Native Arithmetic Instructions".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace simgrad::gpu_check {

enum class Pipe : uint8_t { kFma, kAlu, kHalfFma, kSpecial, kDouble, kMemory, kControl, kUniform };
inline constexpr int kPipeCount = 8;
std::string_view PipeName(Pipe pipe);
// Cycles of a scheduler for one warp instruction.
double CyclesOf(Pipe pipe);
// Of an instruction such as "FMNMX" or "IMAD.WIDE.U32".
Pipe PipeOf(std::string_view opcode);

struct Counts {
  double all = 0;
  double by_pipe[kPipeCount] = {};
  void Add(const Counts& more, double times);
  // The least cycles of a scheduler, and what they are lost to ("issue" or a pipe).
  double Cycles(std::string* bound = nullptr) const;
};

struct Instruction {
  int64_t address = 0;
  std::string opcode;
  int64_t target = -1;  // of a branch
};

// Of `function`, from the output of `nvdisasm -c` or of `cuobjdump -sass`.
absl::StatusOr<std::vector<Instruction>> ReadListing(const std::string& listing,
                                                     const std::string& function);

// The bodies of loops nested in each other, the outermost first, each without the ones inside it.
// Where loops stand side by side the longest is taken.
absl::StatusOr<std::vector<Counts>> NestedLoops(const std::vector<Instruction>& instructions);

}  // namespace simgrad::gpu_check
