// What running a program means, where program.h and loop.h leave it open. All executors obey this
// page; the rules are docs/numerics.md and the ADRs made into sentences an executor can be checked
// by.
//
// Numbers. Every real value has a format (Program::values[].format). An operation's operands have
// the
//   format it computes in (AssignPrecision inserted the casts); the exact result is rounded once
//   to the format of its result. Elementary functions: evaluated in f64 (precision/elementary.h),
//   rounded once. sum: precision/reduction.h with attributes.order and attributes.accumulator.
//   cumsum: acc = round(acc + x[i]) from +0 in the accumulator, each prefix rounded to the result.
//   select, max, min, slice, ... move values. max, min: NaN-propagating, max(+0, -0) = +0. Every
//   NaN that becomes visible is canonical. i32, i64 wrap. Threads run with nearest-even and no
//   flush-to-zero. A comparison with NaN is false, `ne` too; a NaN converts to false. convert: an
//   integer is rounded to a real once, from its exact value, overflow ieee; i64 to i32 wraps.
//   Literals: rounded once, ieee.
// Inputs. Param, control, data and state as sent are exact f64 numbers (i64 inputs exact integers);
// a cast
//   operation brings them into the role of use. State inputs have the format of role `state`: Start
//   rounds what was sent to it once (overflow mode of role state), unless `initial` computes it:
//   then initial reads the states sent, rounded to role state, and its yields are z[0]. Unbound
//   inputs take default_value. A config input is its default_value. The step input is the integer
//   t. per_step inputs are read at t, by the terminal cost at T - 1 (its gradient goes there; zeros
//   where T = 0). Shared inputs are the same for all instances.
// One step t of one instance: run `step`; its yields, in the format of role state (a cast has been
//   inserted where it differs), are z[t+1]. Exports are read at the end of `step`. Where stage_cost
//   is set: cost = round(cost + stage) in the format of role objective, from +0. Finish: terminal
//   region with z[T] and the exports of step T-1; cost = round(cost + terminal). (steps == 0 with a
//   terminal cost that reads exports has been refused before.)
// Non-finite. An instance is non-finite at step t if the result of any executed operation of step t
// is NaN
//   or Inf (phase forward; terminal cost: step T; `initial`: step 0), or if an input it reads at
//   step t is: phase input, checked before the step; inputs without a step: at step 0, but only
//   inputs that the program uses. Executed means: the loop iteration is run by this instance
//   (element), and attributes.where (if set) holds for the element. Both operands of a select are
//   executed. Adjoint: likewise for the operations of the adjoint; phase adjoint, step t of the
//   region (terminal: T; initial: 0); only if the instance was ok before. InstanceHealth keeps the
//   first; adjoint order is descending steps. A state sent counts as an input of step 0 and is
//   judged as it is read, that is rounded to role state. The additions outside the text count as
//   operations: of a stage cost (step t) or terminal cost (step T) to the cost, of accumulate, and
//   the cast of z[0]'s cotangent to role gradient (phase adjoint, step 0).
// Policy stop. If an instance is non-finite at step t: it keeps z[t], takes neither the cost of
// step t nor any
//   later (nor the terminal), its exports stay what they were after step t-1 (zero before), and
//   from step t+1 on it decides nothing and is counted nowhere but in state ranges. What it decided
//   in step t counts, and so do its casts; its states are not stored. Step t is run also where an
//   input (or `initial`) was non-finite before it. Its adjoint is not run: gradients +0, not
//   connected.
// Decisions. Loop: one per run, hash (site, t, j, e, x = 8 * iterations + reason). Event: where the
// guard holds,
//   value v; where it does not, v = false and nothing is checked. If v differs from the last value
//   of this element (e) of this site (initially false; in loops: the last evaluation in order of
//   execution, of any j) it is a change, and adds the hash with x = v. Evaluations with a false
//   guard take part in this comparison. Path signature: sum mod 2^64 (precision/hash.h). Only
//   `step` (with its stage cost) decides.
// Margins. Of lhs comparison rhs: precision/ulp.h in the format of the two operands, extra
// magnitude: where
//   the value was produced by add, sub or fma (looking through casts, in the same region), the
//   magnitudes of that operation's operands (for fma: of the product, rounded to f64, and the
//   addend). Integer comparisons: ulp 1. has_entry: lhs >= entry is a test like the others, before
//   the first: a check, a margin against `entry` with the extra magnitudes of lhs and entry, near a
//   boundary on the side of those who stop where it fails and of those who go on where it holds. A
//   run that is not entered has it as its last test (histogram, tested value). The value tested,
//   which is that of the first test too, is listed once.
// Counters. Ranges (RangeCounts): casts and tape operations in `step` and its adjoint, where
// executed, and
//   stores of states after a step; not `initial`, the terminal cost or their adjoints. A conversion
//   is narrowing where the target lacks a value of the source. InstanceSite: the values of a step
//   stand run by run in order of execution, elements of a mapped loop ascending; the reason is that
//   of the last run in this order, 0 where there was none.
// Adjoint. Reverse of the executed path with the loop counts of the record. tape: the primal value,
// rounded to
//   its result's format. A slot that is not present holds any value; nobody reads it. accumulate:
//   acc = round(acc + value) in the result format of role gradient, from +0, where the mask holds
//   (for an input with a step: the accumulator of step t); connected if the mask held anywhere.
//   reductions of cotangents: masked elements have been replaced by +0 by an explicit select.
//   Seeds: seed_scale (rounded to role objective) for terminal and stage cost. Cotangents sent by
//   the caller are rounded to role adjoint, times seed_scale (rounded) first in f64. That is no
//   operation: one that is not finite then shows in the first operation that reads it. The
//   certificate names that operation, class input, or, where it was finite before it was rounded,
//   the cotangent, class conversion. At the end the slot of z[0] (after `initial`, if there is one)
//   is cast to role gradient and is the gradient of the state input, connected where its mask holds
//   anywhere.
// Nothing of one instance depends on another.
#pragma once
