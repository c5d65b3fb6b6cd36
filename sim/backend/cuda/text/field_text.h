// The places of fields as C++, and their moves between memory and a thread.
//
// A thread holds the fields that travel with it as members f0, f1, ... of the Instance. With a block
// per instance, a field of several elements stays in memory, and the member points there.
// Errors: none. Cost: linear in what is returned. Threads: pure. The layout outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/backend/cuda/text/program_layout.h"
#include "sim/text.h"

namespace simgrad::sim::cuda {

class FieldText {
 public:
  explicit FieldText(const ProgramLayout& layout) : layout_(layout) {}

  // Whether a field has memory of its own; otherwise the thread holds it.
  bool InMemory(const Field& field) const { return layout_.IsBlock() && field.elements != 1; }
  // Whether a thread has the field, or a pointer to it, while it runs.
  bool Travels(size_t field) const;
  static bool IsReversed(const Field& field) { return field.kind > FieldKind::kFirstEvent; }

  // The memory of a field, for all instances.
  std::string Memory(int field) const;
  // Element `at` of the instance, in memory.
  std::string Place(int field, const std::string& at) const;
  // Element `at` of the member, of a field of so many elements.
  static std::string OfField(int field, int64_t elements, const std::string& at);
  // The name of a field that travels, for people.
  std::string NameOf(const Field& field) const;

  // Writes a statement on element `e` for each element that the thread moves.
  static void EachOf(TextWriter& text, int64_t elements, const std::string& statement);
  // Writes what points the member to the memory of the instance.
  void Point(TextWriter& text, int field) const;
  void Load(TextWriter& text, bool reversed) const { Move(text, reversed, true); }
  void Store(TextWriter& text, bool reversed) const { Move(text, reversed, false); }

 private:
  void Move(TextWriter& text, bool reversed, bool loads) const;
  const Field& Of(int field) const { return layout_.fields[static_cast<size_t>(field)]; }

  const ProgramLayout& layout_;
};

}  // namespace simgrad::sim::cuda
