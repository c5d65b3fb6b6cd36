// Watches the results of one instance for the first that is not finite, and describes its birth.
//
// Maths: a value is born non-finite where an operation gives NaN or Inf from finite operands. Every
//   executed operation is seen in order of execution, so the first non-finite result is a birth
//   unless a non-finite number came in from outside.
//   Classes: input; conversion (a cast, a tape, or a state or cotangent sent beyond the range of
//   its format); divide_by_zero (x / 0, log 0, log1p -1, a negative power of 0, where the result is
//   infinite); invalid (NaN from finite operands); overflow (all else; also a sum whose partial
//   sums leave the range, even where they meet as Inf - Inf).
#pragma once

#include <optional>
#include <vector>

#include "sim/backend/executor.h"
#include "sim/backend/reference/layout.h"
#include "sim/op/evaluate.h"

namespace simgrad::sim::reference {

class NonFiniteWatch {
 public:
  NonFiniteWatch(const NumericalProgram& program, uint64_t instance_id)
      : program_(program), instance_id_(instance_id) {}

  // From here on the first non-finite value goes to `health`, if that is still ok.
  void Begin(InstanceHealth* health, Phase phase, int64_t step);
  // Replays are not watched.
  void Pause() { health_ = nullptr; }
  bool watching() const { return health_ != nullptr && health_->ok; }

  // `where` (or null): the mask of the elements for which the operation is executed.
  void SeeResult(const Op& op, Arrays operands, const Frame& frame, const Array& result,
                 const Array* where);
  // A number that was sent, and what it is read as.
  void SeeInput(const Input& input, Format format, int64_t element, double sent, double read);
  // A cotangent that was sent, and what it is read as (phase adjoint). No operation of its own:
  // where only reading made it infinite, that is the birth of the first result that is not finite
  // for it.
  void NoteCotangent(const std::string& name, Format format, int64_t element, double sent,
                     double read);
  // An addition outside the text of the program: a cost or a gradient.
  void SeeSum(std::string_view operation, std::string_view value_name, Role role, Format format,
              int64_t element, std::vector<double> operands, double result);
  // The addition of an `accumulate`, which gives no value of its own.
  void SeeAccumulate(const Op& op, const Frame& frame, std::string_view input, Format format,
                     int64_t element, double before, double added, double sum);

  // Set once a non-finite value was seen.
  const std::optional<BirthCertificate>& certificate() const { return certificate_; }

 private:
  void Report(BirthCertificate birth);
  // Returns the cotangent that brought one of the operands, or null where another number did. Of an
  // operation that tells none of its operands that are not finite: the first.
  const BirthCertificate* NotedAmong(const std::vector<double>& operands) const;

  const NumericalProgram& program_;
  uint64_t instance_id_;
  InstanceHealth* health_ = nullptr;
  Phase phase_ = Phase::kForward;
  int64_t step_ = 0;
  // Cotangents that only reading made infinite or NaN, of the last step that had one: of each such
  // number the first.
  std::vector<BirthCertificate> noted_;
  std::optional<BirthCertificate> certificate_;
};

// The class of an element of a result that is not finite; kInput where an operand is not.
NonFiniteClass ClassOf(const Program& program, const Op& op, Arrays operands, const Array& result,
                       size_t element);

// Whether element i of n is executed under the mask: a mask of one element speaks for all, and one
// of another length for the whole operation if it holds anywhere.
bool IsExecuted(const Array* where, size_t i, size_t n);

}  // namespace simgrad::sim::reference
