// The numerical program: a world with every format, order and tolerance filled in, and its adjoint.
//
// Executors run it. Lower (lower.h) makes it from a verified Program, a policy and a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "precision/policy.h"
#include "sim/program/path_layout.h"
#include "sim/program/program.h"

namespace simgrad::sim {

// How a loop is differentiated, other than by every iteration that ran (loop_choice.h).
struct LoopChoice {
  enum class How : uint8_t { kTruncated, kImplicit };
  enum class Solver : uint8_t { kDefault, kLu, kIteration, kGmres };
  std::string site;
  How how = How::kTruncated;
  int64_t last = 0;  // truncated: iterations
  Solver solver = Solver::kDefault;
  double tol = 0;        // implicit, by iteration or gmres; 0: chosen (implicit_solve.h)
  int64_t max_iter = 0;  // likewise
  double damping = 0;    // implicit
  int64_t restart = 0;   // implicit, by gmres; 0: chosen
};

// The subject of a derivative: an objective, or cotangents that the caller sends.
struct AdjointSpec {
  std::string objective;                // empty: only the caller's cotangents
  std::vector<bool> final_state;        // per state input: a cotangent of z[T] is sent
  std::vector<bool> trajectory_state;   // per state input: cotangents of z[0..T] are sent
  std::vector<bool> trajectory_export;  // per export: cotangents of every step are sent
  std::vector<bool> wanted;             // per input: its gradient is wanted
  std::vector<LoopChoice> loops;        // of each site at most one
};

// The adjoint regions. Each takes and yields slots (loop.h): all cotangents, then all masks. kNone
// marks a slot that is never present. States have the order of the state inputs.
struct Adjoint {
  // The adjoint at z[T]. Args: [seed, only where there is a terminal cost], then slots:
  // final_state[n] and trajectory_state at T [n] as sent by the caller. Yields slots: z[T] [n],
  // exports of the last step [e]. Always there.
  Region terminal;
  // Adjoint of step t (with its stage cost). Args: [seed, only where there is a stage cost], then
  // slots: z[t+1] [n], exports from `terminal` [e] (in `inner` never present), trajectory_export of
  // step t as sent [e], trajectory_state at t as sent [n]. Yields slots: z[t] [n]. `last` is step T
  // - 1 and takes what `terminal` yields; `inner` is every other step. Both yield the same presence
  // (kNone, mask or everywhere per slot) that `inner` takes. Where `terminal` yields that presence
  // too, and none for the exports, the two are one region: there is no `last`.
  std::optional<Region> last;
  Region inner;
  // Adjoint of `initial`. Args slots: z[0] [n], with the presence that a step or, if none runs,
  // `terminal` yields. Yields slots: the states sent [n]. Without an `initial` region it has no
  // yields, and the slots of z[0] are those of the states sent.
  Region initial;
  // The solves that it tells of, by their sites "SITE.adjoint", and the input of the first (told.h).
  std::vector<std::string> told;
  int32_t first_told = -1;

  const Region& Last() const { return last ? *last : inner; }
};

struct NumericalProgram {
  Program program;  // assigned; `step` has the stage cost appended where an objective is chosen
  precision::Policy policy;
  std::string objective;                // chosen, or empty
  ValueId stage_cost = ValueId::kNone;  // the scalar of `step` that is the stage cost
  std::optional<AdjointSpec> adjoint_spec;
  std::optional<Adjoint> adjoint;
  std::string text;         // canonical
  std::string fingerprint;  // SHA-256 of the text, lower-case hex
  // SHA-256 of what the text says of the forward pass (print.h); its edition of functions follows
  // from that.
  std::string forward_fingerprint;
  std::vector<Site> sites;         // of step, in text order
  std::vector<std::string> halts;  // their names, in text order (halts.h)
  // By value: whether it may be infinite by intent (infinities.h); empty where no literal is.
  std::vector<bool> infinite;
  std::optional<PathLayout> path;           // where the run gives its path, or takes one (paths.h)
  std::vector<std::string> deciding_tests;  // what they are called, by number (DecidingTests)
};

// Every region that is not inside an operation, once, in the order of the text.
std::vector<Region*> RegionsOf(NumericalProgram& program);
std::vector<const Region*> RegionsOf(const NumericalProgram& program);
std::vector<const Region*> RegionsOf(const Adjoint& adjoint);

// Returns the terminal cost that runs, or null.
const Region* TerminalOf(const NumericalProgram& program);

// By input: whether an operation of `initial`, `step` or the terminal cost reads it.
std::vector<bool> ReadInputs(const NumericalProgram& program);

// Returns the overflow mode of a cast or tape: its own, else that of its role at its site.
Overflow OverflowInForce(const precision::Policy& policy, const Op& op);

}  // namespace simgrad::sim
