// Instructions on the lanes of a group: vectors, masks, variables and memory.
//
// A number of all lanes is a vector for each part. Threads: one per module.
#pragma once

#include <llvm/ADT/SmallVector.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <string>
#include <vector>

#include "sim/backend/compiled/group/writer_options.h"
#include "sim/backend/compiled/scalars/widen.h"

namespace simgrad::sim::compiled {

// Members of GroupArgs, in order.
enum Member : unsigned {
  kNumbers,
  kIntegers,
  kInputs,
  kFields,
  kWorkspace,
  kKept,
  kReuses,
  kFuel,
  kPoll,
  kLanesUsed,
  kFirstStep,
  kCount,
  kHealth,
  kBadInputs,
  kNearBand,
  kRanks,
  kSignatures,
  kTerminations,
  kEvents,
  kRanges,
  kAdditions,
  kEventMargins,
  kLastEvents,
  kFirstEvents,
  kTellTested,
  kTellRun,
  kNoteMargins,
  kNoteTested,
  kTerminationWatches,
  kEventWatches,
  kSeedScale,
  kSentCotangents,
  kGradients,
  kConnectedFlags,
  kBackward,
  kTakeCotangents,
  kFrames,
  kTapeBytes,
  kTape,
  kTapeCapacity,
  kGrow,
  kMembers
};

using Vectors = llvm::SmallVector<llvm::Value*, 4>;  // one per part

class LaneBuilder {
 public:
  // `builder` writes where the function has got to, `entry` at its beginning.
  LaneBuilder(llvm::Module& module, llvm::IRBuilder<>& builder, llvm::IRBuilder<>& entry,
              const WriterOptions& options, llvm::Value* const* arguments,
              llvm::Function*& function);

 protected:
  unsigned width() const { return static_cast<unsigned>(options_.shape.width); }
  size_t parts() const { return static_cast<size_t>(options_.shape.parts); }
  // A vector of one lane is a scalar.
  llvm::Type* VectorOf(llvm::Type* type) { return Widened(type, width()); }
  // The call of a scalar function, for a vector.
  llvm::Value* Call(const std::string& name, const std::vector<llvm::Value*>& operands);
  llvm::Value* Splat(llvm::Value* value) { return Splatted(b_, value, width()); }
  llvm::Value* Splat64(uint64_t n) { return Splat(b_.getInt64(n)); }
  llvm::Value* Splat32(uint32_t n) { return Splat(b_.getInt32(n)); }
  llvm::Value* One(llvm::Value* mask) { return b_.CreateZExt(mask, VectorOf(b_.getInt32Ty())); }

  // ---- variables ----
  Vectors Variables(llvm::Type* type);
  void Set(const Vectors& variables, llvm::Value* value);
  llvm::Value* Get(const Vectors& variables, size_t part, llvm::Type* type);
  // Loads what a member of GroupArgs points to, for all lanes.
  Vectors LoadLanes(Member member, llvm::Type* type);
  void StoreLanes(Member member, const Vectors& variables, llvm::Type* type);
  // The numbers of all lanes in memory, to be read at a lane while the Lists around it live.
  llvm::Value* Listed(const Vectors& values, llvm::Type* type);
  // Gives back at its end the memory of what was listed meanwhile: a function may list thousands.
  class Lists {
   public:
    explicit Lists(LaneBuilder& builder) : builder_(builder), before_(builder.listed_) {}
    ~Lists() { builder_.listed_ = before_; }
    Lists(const Lists&) = delete;
    Lists& operator=(const Lists&) = delete;

   private:
    LaneBuilder& builder_;
    const size_t before_;
  };

  // ---- masks ----
  llvm::Value* Any(const Vectors& mask);
  // The lanes of a mask as bits of one integer, the first part lowest; in 64 bits.
  llvm::Value* BitsOf(const Vectors& mask);
  llvm::Value* Bits64Of(const Vectors& mask);
  // A mask of such bits; the integer may be wider.
  Vectors LanesOf(llvm::Value* bits);
  llvm::Value* Population(llvm::Value* bits);  // in 64 bits
  Vectors Both(const Vectors& a, const Vectors& b);
  Vectors ButNot(const Vectors& a, const Vectors& b);

  // ---- control ----
  void If(llvm::Value* condition, const std::function<void()>& body);
  void IfRarely(llvm::Value* condition, const std::function<void()>& body);
  // Calls body(lane) for each lane of a mask, one after the other.
  void EachLaneOf(const Vectors& mask, const std::function<void(llvm::Value* lane)>& body);
  // Calls body(lane, same) with the first lane of a mask; `same` says which lanes of the mask are
  // done with it; then with the first of the others, and so on.
  using Same = std::function<Vectors(llvm::Value* lane)>;
  void EachKindOf(
      const Vectors& mask, const Same& same,
      const std::function<void(llvm::Value* lane, const Vectors& lanes, llvm::Value* count)>& body);

  // ---- memory ----
  // argument + index * stride + offset, in bytes.
  llvm::Value* Memory(Member member, llvm::Value* index, uint64_t stride, uint64_t offset);
  llvm::Value* Offset(llvm::Value* address, uint64_t bytes);
  void AddTo(llvm::Value* address, llvm::Value* amount);
  // A function of GroupArgs.
  void CallBack(Member member, const std::vector<llvm::Value*>& operands);
  llvm::Value* Arguments() { return function_->getArg(0); }
  // Adds one at histogram[bucket] for each lane of the mask: as many turns as buckets differ.
  void CountInHistogram(llvm::Value* column, uint64_t offset, const Vectors& buckets,
                        const Vectors& mask);

  llvm::Module& module_;
  llvm::LLVMContext& context_;
  llvm::IRBuilder<>& b_;
  llvm::IRBuilder<>& entry_;
  const WriterOptions& options_;
  llvm::Value* const* arguments_;
  llvm::Function*& function_;  // that is written

 private:
  std::vector<llvm::Value*> lists_;  // memory in the frame of lists_of_
  const llvm::Function* lists_of_ = nullptr;
  size_t listed_ = 0;  // of lists_, in use
};

}  // namespace simgrad::sim::compiled
