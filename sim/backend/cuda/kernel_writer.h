// Writes the entry points of a text, one object each.
#pragma once

#include <string>
#include <vector>

#include "sim/backend/cuda/region_writer.h"

namespace simgrad::sim::cuda {

// Bytes of what the threads of a block share (struct Shared of the text).
int64_t SharedBytes(const Source& source);
// More does not go into shared memory, but into the workspace.
inline constexpr int64_t kLargestShared = 40 << 10;
// Where the terminal cost reads inputs per step.
inline constexpr std::string_view kTerminalReadTime = "(args.steps > 0 ? args.steps - 1 : 0)";

class KernelWriter : public RegionWriter {
 public:
  explicit KernelWriter(Source& source) : RegionWriter(source) {}
  std::string Start();
  std::string Forward();
  std::string Finish();
  std::string StartAdjoint();
  std::string Adjoint();
  std::string FinishAdjoint();

 private:
  // ---- fields (kernel_writer.cc) ----
  std::string FieldAt(int field, const std::string& index) const;
  Place LoadField(int field, const std::string& name);
  void StoreField(int field, const Place& place);
  void FillField(int field, const std::string& value);
  std::vector<Place> LoadStates();
  std::vector<Place> LoadExports();
  void BindStates(const std::vector<Place>& states);
  std::vector<Place> ReadSentStates();
  Place LoadScalar(FieldKind kind, const std::string& name);
  bool Stops() const { return source_.numerical().policy.nonfinite == precision::NonFinite::kStop; }
  void Combine(const std::string& flag);
  // `comment` says in the text what the kernel does.
  std::string Assemble(const std::string& comment, const std::string& name,
                       const std::string& tail);
  void OpenShared(bool uses);
  std::string FlushRanges();
  std::string FlushHealth();
  // ---- groups of instances (group_text.cc) ----
  int64_t GroupSize() const;
  std::string MemberText() const;
  // What is done for each instance of the thread, in a text of this depth.
  std::string OverGroup(const std::string& inside, int depth) const;
  // What was written into the body, which begins anew at this depth.
  std::string TakeBody(int next_depth);
  std::string Live() const { return source_.block() ? "speaks" : "live"; }
  const Input& StateInput(size_t k) const {
    return source_.program().inputs[static_cast<size_t>(source_.state_inputs()[k])];
  }

  // ---- forward (forward_kernels.cc) ----
  void CheckSentInputs();
  void CheckStepInputs();
  // What travels with an instance from step to step.
  struct Travelling {
    std::vector<Place> states, exports;
    Place cost, health;  // no cost: not set
  };
  void OpenForward();
  std::string LoadText(Travelling& instance);
  std::string StepText(const Travelling& instance);
  std::string StoreText(const Travelling& instance);
  void DeclareSites();
  void DeclareTallies();
  void Step(const std::vector<Place>& states, const std::vector<Place>& exports);
  void Commit(const std::vector<Place>& states, const std::vector<Place>& exports);
  void AddCost(ValueId cost);
  void WriteTrajectories(const std::vector<Place>& states, const std::vector<Place>& exports);
  void TellStep();
  void RepeatRanges(TextWriter& text, const std::string& steps);
  std::string SampleText(const std::vector<Place>& states);
  void JoinStep(const std::string& sample);
  void StoreSites();
  void BindTerminal(const Region& terminal, const std::vector<Place>& states,
                    const std::vector<Place>& exports);

  // ---- adjoint (adjoint_kernels.cc) ----
  void OpenAdjoint();
  std::vector<SlotPlace> LoadCotangents();
  std::vector<SlotPlace> LoadExportCotangents();
  void StoreSlots(FieldKind cotangent, FieldKind mask, const std::vector<SlotPlace>& slots);
  void LoadGradients();
  void StoreGradients();
  SlotPlace SentSlot(const std::string& name, const std::string& sent, const std::string& entry,
                     ValueId type, const std::vector<ValueId>& readers);
  void NoteHealth(const std::string& step);
  void Replay(const std::vector<Place>& states);
  void ReverseStep(const Region& region, const std::vector<SlotPlace>& cotangents,
                   const std::vector<SlotPlace>& exports);
  void JoinCotangents(const std::vector<SlotPlace>& cotangents);
  void OpenTape();
  void BindSeed(const Region& region, size_t leading);
  void CastGradients(const std::vector<SlotPlace>& cotangents);

  bool joins_ = false;  // columns of steps, from all threads of the block
};

}  // namespace simgrad::sim::cuda
