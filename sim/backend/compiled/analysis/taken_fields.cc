#include "sim/backend/compiled/analysis/taken_fields.h"

#include <algorithm>
#include <utility>

#include "sim/plan/statement_walk.h"

namespace simgrad::sim::compiled {

using plan::Buffer;
using plan::BufferId;
using plan::Code;
using plan::Register;
using plan::Statement;

TakenFields::TakenFields(const plan::Function& function)
    : function_(function), is_true_(function.registers.size(), false) {
  plan::EachStatement(function.statements, [this](const Statement& s) {
    if (s.code == Code::kConstant && s.number == 1) is_true_[static_cast<size_t>(s.result)] = true;
  });
}

BufferId TakenFields::FieldOf(const Statement& each, Register number) const {
  const plan::Index whole = {0, {{each.result, 1}}, plan::kNoRegister};
  const auto buffer_of = [this](const Statement& s) -> const Buffer& {
    return function_.buffers[static_cast<size_t>(s.buffer)];
  };
  BufferId found = plan::kNoBuffer;
  for (const Statement& s : each.body) {
    const bool loads = s.code == Code::kLoad && s.result == number;
    const bool stores = s.code == Code::kStore && s.operands[0] == number;
    if (!(loads || stores) || s.index != whole) continue;
    const Buffer& buffer = buffer_of(s);
    if (buffer.kind == plan::BufferKind::kField && buffer.count == each.number) found = s.buffer;
  }
  if (found == plan::kNoBuffer) return found;
  // Whether the loop stores anything else there.
  const int32_t field = function_.buffers[static_cast<size_t>(found)].number;
  bool is_kept = true;
  plan::EachStatement(each.body, [&](const Statement& s) {
    if (s.code != Code::kStore) return;
    const Buffer& buffer = buffer_of(s);
    if (buffer.kind != plan::BufferKind::kField || buffer.number != field) return;
    is_kept = is_kept && s.operands[0] == number && s.index == whole;
  });
  return is_kept ? found : plan::kNoBuffer;
}

std::vector<TakenField> TakenFields::Of(const Statement& each, Statement& rest) const {
  std::vector<TakenField> fields;
  if (!each.parallel || !each.operands.empty()) return fields;
  std::vector<bool> is_taken;  // by statement of the body
  for (const Statement& s : each.body) {
    is_taken.push_back(false);
    if (s.code != Code::kTake) continue;
    TakenField field = {.values = FieldOf(each, s.operands[0]), .format = s.format, .role = s.role};
    const bool is_f64 = field.format == precision::Format::kF64;
    const bool is_present = is_true_[static_cast<size_t>(s.operands[1])];
    if (!is_present) field.present = FieldOf(each, s.operands[1]);
    if (field.values == plan::kNoBuffer) continue;
    const plan::Carrier carrier = function_.buffers[static_cast<size_t>(field.values)].carrier;
    if (carrier != (is_f64 ? plan::Carrier::kF64 : plan::Carrier::kF32)) continue;
    if (!is_present && field.present == plan::kNoBuffer) continue;
    is_taken.back() = true;
    fields.push_back(field);
  }
  if (fields.empty()) return fields;
  rest = each;
  size_t at = 0;
  std::erase_if(rest.body, [&](const Statement&) { return is_taken[at++]; });
  return fields;
}

}  // namespace simgrad::sim::compiled
