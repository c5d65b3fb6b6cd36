#include "server/conversion/program_limits.h"

#include "sim/program/pass_budget.h"
#include "sim/program/verify.h"

namespace simgrad::server::conversion {

void SetProgramLimits(v1::Limits& limits) {
  const sim::ProgramLimits programs;
  limits.set_max_elements(programs.max_elements);
  limits.set_max_operations(programs.max_operations);
  limits.set_max_loop_iterations(programs.max_loop_iterations);
  limits.set_max_nested_iterations(programs.max_nested_iterations);
  limits.set_max_step_work(programs.max_step_work);
  limits.set_max_values(programs.max_values);
  limits.set_max_total_elements(programs.max_total_elements);
  limits.set_max_depth(programs.max_depth);
  limits.set_max_name_bytes(programs.max_name_bytes);
  limits.set_max_exports(programs.max_exports);
  limits.set_max_objectives(programs.max_objectives);
  limits.set_max_operands(programs.max_operands);
  limits.set_max_total_operands(programs.max_total_operands);
  limits.set_max_literal_elements(programs.max_literal_elements);
  const sim::LoweredLimits lowered;
  limits.set_max_lowered_operations(lowered.max_operations);
  limits.set_max_lowered_bytes(lowered.max_bytes);
  limits.set_max_lowered_text_bytes(lowered.max_text_bytes);
  limits.set_max_lowered_operands(lowered.max_operands);
  limits.set_max_lowered_visits(lowered.max_visits);
  limits.set_max_permuted_numbers(lowered.max_permuted);
}

}  // namespace simgrad::server::conversion
