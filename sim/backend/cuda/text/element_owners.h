// Finds which thread of a block touches which element, and so where the threads have to wait.
//
// With a block per instance, a loop of a plan whose turns may run side by side is shared out: turn k
// is that of thread k mod block size. All other statements are executed by all threads alike, and
// thread 0 alone writes what they write to shared arrays. So a thread may meet what another one
// wrote, or overwrite what another one still reads: there a barrier has to stand, unless both touch
// an element from the same thread.
// Maths: an element e of an array is owned by turn floor((e - base) / stride) of a loop that walks it
//   by `stride`. Two accesses of the same base and stride meet in the same thread.
// Errors: none. Cost: linear, times the depth of loops. Threads: pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "sim/plan/plan.h"

namespace simgrad::sim::cuda {

// How the elements of an access belong to threads.
struct Owner {
  enum Kind : uint8_t { kAll, kFirst, kTurns } kind = kAll;  // every thread, thread 0, by turns
  int64_t base = 0;
  int64_t stride = 0;
  auto operator<=>(const Owner&) const = default;
};

struct Access {
  int64_t memory = 0;  // which array
  bool writes = false;
  Owner owner;
  auto operator<=>(const Access&) const = default;
};
using Accesses = std::set<Access>;

// A loop whose turns are shared out, with the loops that it alone holds, as one.
struct SharedLoop {
  std::vector<plan::Register> counters;  // outermost first
  std::vector<int64_t> extents;
  const std::vector<plan::Statement>* body = nullptr;
  std::vector<plan::BufferId> flags;  // of one element: each turn joins them by `or`
  bool in_order = false;              // by thread 0 alone
  bool pushes = false;
  int64_t turns() const;
};

class ElementOwners {
 public:
  // `kept`, by input: every thread has the sum of its gradient. `tells_instances`: runs of loops are
  // told of one by one, in order.
  ElementOwners(const plan::Function& function, const std::vector<bool>& kept,
                bool tells_instances);

  // Whether the elements of a buffer are shared by the block: of an array that is declared outside of
  // loops that are shared out.
  bool IsShared(plan::BufferId id) const;
  // The loop to share out that begins with this statement; without a body: there is none.
  SharedLoop ShareOut(const plan::Statement& statement) const;
  // The accesses of a statement, with all inside it, when all threads come to it.
  Accesses Of(const plan::Statement& statement) const;
  Accesses Of(const std::vector<plan::Statement>& statements) const;
  // Whether the threads have to wait between the two.
  static bool Meet(const Accesses& before, const Accesses& after);

 private:
  using Extents = std::map<plan::Register, int64_t>;
  void Gather(const plan::Statement& statement, const SharedLoop* loop, Extents& inner,
              Accesses& to) const;
  void Touch(plan::BufferId id, const plan::Index& index, bool writes, const SharedLoop* loop,
             const Extents& inner, Accesses& to) const;
  void FindPrivate(const std::vector<plan::Statement>& statements, bool inside);
  bool FindFlags(const std::vector<plan::Statement>& body, SharedLoop& loop) const;

  const plan::Function& function_;
  const std::vector<bool>& kept_;
  const bool tells_instances_;
  std::map<std::tuple<plan::BufferKind, int32_t>, int64_t> named_;  // fields and gradients
  std::set<plan::BufferId> private_;                                // of one turn
  std::vector<int64_t> memory_;                                     // by buffer
};

}  // namespace simgrad::sim::cuda
