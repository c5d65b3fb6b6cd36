// Worlds that were verified and programs that were lowered, by what the request said.
//
// The key is a digest of what the program depends on, so that requests share that ask for the same,
// those of one dynamic loss scale among them, and no others do. Entries are measured, and the oldest
// use goes first; they also go where their memory is needed (Relieve).
// Cost: a hit is a serialisation, a digest and a look-up.
// Threads: any; two that miss at once both compute, and one result is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "server/conversion/compile_control.h"
#include "server/conversion/measured_lru.h"
#include "server/validation/program_schema.h"
#include "sim/program/lower.h"
#include "sim/program/numerical_program.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

struct CachedWorld {
  std::string key;
  sim::Program program;  // verified
  validation::ProgramSchema schema;
  std::shared_ptr<void> memory;  // lease of what this holds, while it is cached
};

// The worlds of a request that names their programs (World.program_ref), by the SHA-256 of these.
using NamedWorlds = std::map<std::string, std::shared_ptr<const CachedWorld>>;

struct CachedProgram {
  std::shared_ptr<const CachedWorld> world;
  std::shared_ptr<const sim::NumericalProgram> program;
  std::vector<validation::FieldSchema> required;  // inputs it reads that have no default
  std::string info;  // what every answer says of it: a serialised v1::ProgramInfo without text
  double step_work = 0.0;  // element-operations of a step and of all costs, every loop at its cap
  std::shared_ptr<void> memory;  // lease of what this holds, while it is cached
};

struct ProgramCacheOptions {
  int64_t max_entries = 256;  // of worlds, and of programs
  // The most bytes that the entries hold, programs and worlds together.
  int64_t max_bytes = int64_t{256} << 20;
  // Takes so many bytes of the server's memory until the result is destroyed; null: there is no
  // room. Empty: there always is.
  std::function<std::shared_ptr<void>(int64_t bytes)> lease;
};

class ProgramCache {
 public:
  enum class Lookup { kHit, kMiss, kFailed };

  // `on_lookup` is told of every look-up of a lowered program.
  ProgramCache(ProgramCacheOptions options, std::function<void(Lookup)> on_lookup);

  // Errors: as WorldFromProto, with the field path below `field`; NOT_SUPPORTED for a program that is
  // named, and not in `named`.
  absl::StatusOr<std::shared_ptr<const CachedWorld>> World(const v1::World& world,
                                                           const std::string& field,
                                                           const CompileControl& control = {},
                                                           const NamedWorlds& named = {});

  // The world of the program that is kept as content under this SHA-256, as long as the cache or a
  // call has it; else null. Whoever asks has the content.
  std::shared_ptr<const CachedWorld> OfContent(const std::string& sha256) const;
  void SetOfContent(const std::string& sha256, const std::shared_ptr<const CachedWorld>& world);

  // Errors: as PolicyFromProto and sim::Lower; `field` is that of the message with the policy;
  // RESOURCE_EXHAUSTED where `control` has no memory.
  absl::StatusOr<std::shared_ptr<const CachedProgram>> Lower(
      std::shared_ptr<const CachedWorld> world, const v1::Policy& policy,
      const std::string& objective, const std::optional<sim::AdjointSpec>& adjoint,
      const std::string& field, const CompileControl& control = {},
      const sim::LowerOptions& options = {});

  // Forgets the oldest entries that no call uses, until they held so many bytes or none is left.
  int64_t Relieve(int64_t bytes);

  struct Use {
    int64_t bytes = 0;
    int64_t entries = 0;
  };
  Use worlds() const;
  Use programs() const;

 private:
  template <class Value>
  std::shared_ptr<const Value> Keep(const std::string& key, std::shared_ptr<Value> value,
                                    int64_t bytes, MeasuredLru<Value>& entries);

  const ProgramCacheOptions options_;
  mutable std::mutex mutex_;
  // At most twice `max_entries`; those that are gone go when there are more.
  std::unordered_map<std::string, std::weak_ptr<const CachedWorld>> of_contents_;
  MeasuredLru<CachedWorld> worlds_;
  MeasuredLru<CachedProgram> programs_;
  std::function<void(Lookup)> on_lookup_;
};

}  // namespace simgrad::server::conversion
