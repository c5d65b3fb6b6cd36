#include "sim/plan/structure.h"

#include <algorithm>
#include <type_traits>

namespace simgrad::sim::plan {
namespace {

// A member that is added to one of these belongs into the structure too, or it is for people.
static_assert(sizeof(Statement) == 216);
static_assert(sizeof(Buffer) == 64);
static_assert(sizeof(Function) == 152);
static_assert(sizeof(Plan) == 1440);
static_assert(sizeof(RecordedSite) == 24);
static_assert(sizeof(Field) == 24);

class Writer {
 public:
  template <class T>
  void Add(T x) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const int64_t wide = static_cast<int64_t>(x);
    // Most numbers are small.
    if (wide >= -64 && wide < 64) {
      bytes_.push_back(static_cast<char>(wide + 64));
      return;
    }
    bytes_.push_back(static_cast<char>(0xFF));
    bytes_.append(reinterpret_cast<const char*>(&wide), sizeof(wide));
  }
  void Add(const std::string& text) {
    Add(text.size());
    bytes_ += text;
  }
  void Add(const Statement& s) {
    Add(s.code);
    Add(s.result);
    Add(s.operands.size());
    for (Register r : s.operands) Add(r);
    Add(s.function);
    Add(s.buffer);
    Add(s.index.base);
    Add(s.index.terms.size());
    for (const auto& [r, stride] : s.index.terms) {
      Add(r);
      Add(stride);
    }
    Add(s.index.moved);
    for (int64_t n : {s.stride, s.number}) Add(n);
    Add(s.parallel);
    Add(s.invariant);
    Add(s.before_stop);
    Add(s.site);
    for (Register r : {s.extra, s.where, s.iteration, s.element, s.frame}) Add(r);
    Add(s.shared);
    Add(s.format);
    Add(s.role);
    AddAll(s.body);
  }
  void Add(const Buffer& b) {
    Add(b.kind);
    Add(b.carrier);
    Add(b.count);
    Add(b.number);
    Add(b.shared);
    Add(b.placed);
    Add(b.offset);
  }
  void Add(const Function& f) {
    Add(f.registers.size());
    for (Carrier carrier : f.registers) Add(carrier);
    AddAll(f.buffers);
    AddAll(f.statements);
    Add(f.workspace);
    Add(f.kept);
    Add(f.frame);
    AddAll(f.pieces);
  }
  void Add(const Field& f) {
    Add(f.kind);
    Add(f.index);
    Add(f.carrier);
    Add(f.count);
  }
  void Add(const RecordedSite& s) {
    Add(s.hash);
    Add(s.elements);
    Add(s.has_entry);
    Add(s.cap_first);
    Add(s.chooses);
  }
  void Add(const Sent& s) {
    Add(s.kind);
    Add(s.index);
  }
  template <class T>
  void AddAll(const std::vector<T>& all) {
    Add(all.size());
    for (const T& one : all) Add(one);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

int64_t BytesOf(const std::vector<Statement>& statements) {
  int64_t bytes = 0;
  for (const Statement& s : statements) {
    bytes += static_cast<int64_t>(sizeof(Statement) + s.operands.capacity() * sizeof(Register) +
                                  s.index.terms.capacity() * sizeof(s.index.terms[0]) +
                                  s.comment.capacity() + s.function.capacity());
    bytes += BytesOf(s.body);
  }
  return bytes;
}

int64_t BytesOf(const Function& function) {
  int64_t bytes = BytesOf(function.statements);
  bytes += static_cast<int64_t>(function.registers.capacity() * sizeof(Carrier));
  for (const Buffer& buffer : function.buffers) {
    bytes += static_cast<int64_t>(sizeof(Buffer) + buffer.name.capacity());
  }
  for (const Function& piece : function.pieces) {
    bytes += static_cast<int64_t>(sizeof(Function)) + BytesOf(piece);
  }
  return bytes;
}

}  // namespace

std::string StructureOf(const Plan& plan, const std::vector<const Function*>& functions) {
  Writer writer;
  writer.AddAll(plan.fields);
  writer.AddAll(plan.terminations);
  writer.AddAll(plan.events);
  writer.Add(plan.event_margins);
  writer.AddAll(plan.sent);
  writer.Add(functions.size());
  for (const Function* function : functions) {
    writer.Add(function->name);
    writer.Add(*function);
  }
  return writer.Take();
}

int64_t StatementsOf(const std::vector<Statement>& block) {
  int64_t count = 0;
  for (const Statement& s : block) count += 1 + StatementsOf(s.body);
  return count;
}

int64_t StatementsOf(const Function& function) {
  int64_t count = StatementsOf(function.statements);
  for (const Function& piece : function.pieces) count += StatementsOf(piece);
  return count;
}

int64_t LargestPiece(const Function& function) {
  int64_t most = StatementsOf(function.statements);
  for (const Function& piece : function.pieces) most = std::max(most, LargestPiece(piece));
  return most;
}

int64_t HeldBytes(const Plan& plan) {
  int64_t bytes = static_cast<int64_t>(sizeof(Plan) + 8 * plan.numbers.capacity() +
                                       8 * plan.integers.capacity() +
                                       sizeof(OuterProduct) * plan.outer_products.capacity());
  for (const Function* function :
       {&plan.start, &plan.step, &plan.finish, &plan.replay, &plan.reverse_terminal,
        &plan.reverse_last, &plan.reverse, &plan.reverse_initial}) {
    bytes += BytesOf(*function);
  }
  return bytes;
}

}  // namespace simgrad::sim::plan
