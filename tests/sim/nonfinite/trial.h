// Runs a planted case through the engine and compares what comes out with what the witness says.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "sim/engine.h"
#include "tests/sim/nonfinite/planted.h"

namespace simgrad::nonfinite {

struct ExecutorCase {
  std::string name;
  std::function<std::shared_ptr<sim::Executor>()> make;
  friend void PrintTo(const ExecutorCase& made, std::ostream* out) { *out << made.name; }
};
std::vector<ExecutorCase> TestedExecutors();

// Ids, chunks, checkpoints and the level of recording are drawn.
sim::Work WorkOf(const Planted& planted, Random& random);

std::string Text(const sim::BirthCertificate& birth);

// Everything but the instance and the name of the value, which the witness does not know.
bool Same(const sim::BirthCertificate& a, const sim::BirthCertificate& b);

const sim::BirthCertificate* CertificateOf(const sim::WorkResult& result, uint64_t id);

// Health, certificate and final states of one instance.
void ExpectTestimony(const Planted& planted, const sim::Work& work, const sim::WorkResult& result,
                     size_t row, const Testimony& testimony);

// What the witness says of every instance, in rows.
std::vector<Testimony> TestimoniesOf(const Planted& planted);

// The whole trial: work, engine, every instance.
void ExpectAsTheWitnessSays(const Planted& planted, const std::vector<Testimony>& testimonies,
                            const sim::Engine& engine, Random& random);

}  // namespace simgrad::nonfinite
