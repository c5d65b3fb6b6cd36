// The compiler: a module of LLVM instructions as the bytes of an object file.
//
// Maths: no contraction, no reassociation; both efforts give the same bits.
// Errors: INTERNAL with LLVM's words; OUT_OF_RANGE where a function takes more than `most_frame_bytes` of
//   stack; CANCELLED where `stop` returned true.
// Cost: a compile; once `stop` returns true, the rest of the function at hand.
// Threads: any; one per module.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/work_meter.h"

namespace llvm {
class Module;
}

namespace simgrad::sim::compiled {

// The most that a function of a kernel takes of a thread's stack, which has 8 MiB; they call each other three
// deep. Measured: some 200 bytes a statement, so that what is no loop has less than 1 MiB (plan/cut.h).
inline constexpr uint64_t kMostFrameBytes = uint64_t{2} << 20;

// Makes LLVM know this machine. Compiling and loading do it first; repeated calls do nothing.
void InitializeTarget();

// Kinds of vectors: three of x86-64, one of arm64.
enum class Isa : uint8_t { kSse2, kAvx2, kAvx512, kNeon };
// Those that this machine has, narrower ones first; the last is the best.
const std::vector<Isa>& IsasOfThisMachine();
Isa BestIsa();
// The widest vectors of an x86-64 processor with these features, by LLVM's names for them. Code for an Isa may
// use every feature of the processor that it is compiled for, not only its vectors.
Isa BestIsaOf(const std::set<std::string>& features);
std::string_view IsaName(Isa isa);
int FloatLanes(Isa isa);
// Whether a multiply-add with one rounding is one instruction.
bool FusesMultiplyAdd(Isa isa);

// kQuick: soon there; kBest: soon done.
enum class Effort : uint8_t { kQuick, kBest };

// The content of a vector's lanes: instances, or elements of arrays of one instance, whose loops
// the compiler widens.
enum class Mapping : uint8_t { kLanes, kElements };

absl::StatusOr<std::string> CompileObject(llvm::Module& module, Isa isa, Effort effort,
                                          Mapping mapping, uint64_t most_frame_bytes,
                                          const WorkMeter::StopCallback& stop);

}  // namespace simgrad::sim::compiled
