// Worlds that were verified and programs that were lowered, by what the request said.
//
// The key is the serialised message itself, so equal requests share and nothing else does; the
// oldest use goes first. Cost: a hit is a serialisation and a look-up.
// Threads: any; two that miss at once both compute, and one result is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "server/validation/program_schema.h"
#include "sim/program/lower.h"
#include "sim/program/numerical_program.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::conversion {

struct CachedWorld {
  std::string key;
  sim::Program program;  // verified
  validation::ProgramSchema schema;
};

struct CachedProgram {
  std::shared_ptr<const CachedWorld> world;
  std::shared_ptr<const sim::NumericalProgram> program;
  std::vector<validation::FieldSchema> required;  // inputs it reads that have no default
  std::string info;        // what every answer says of it: a serialised v1::ProgramInfo
  double step_work = 0.0;  // element-operations of a step and of all costs, every loop at its cap
};

// Least recently used first out, by number and by bytes of the keys.
template <class Value>
class LruMap {
 public:
  LruMap(int64_t max_entries, int64_t max_key_bytes)
      : max_entries_(max_entries), max_key_bytes_(max_key_bytes) {}
  std::shared_ptr<const Value> Find(const std::string& key);
  void Insert(const std::string& key, std::shared_ptr<const Value> value);
  size_t size() const { return index_.size(); }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Value> value;
  };
  int64_t max_entries_;
  int64_t max_key_bytes_;
  int64_t key_bytes_ = 0;
  std::list<Entry> entries_;  // most recent first
  std::unordered_map<std::string, typename std::list<Entry>::iterator> index_;
};

class ProgramCache {
 public:
  enum class Lookup { kHit, kMiss, kFailed };

  // `on_lookup` is told of every look-up of a lowered program.
  ProgramCache(int64_t max_entries, std::function<void(Lookup)> on_lookup);

  // Errors: as WorldFromProto, with the field path below `field`.
  absl::StatusOr<std::shared_ptr<const CachedWorld>> World(const v1::World& world,
                                                           const std::string& field);

  // Errors: as PolicyFromProto and sim::Lower; `field` is that of the message with the policy.
  absl::StatusOr<std::shared_ptr<const CachedProgram>> Lower(
      std::shared_ptr<const CachedWorld> world, const v1::Policy& policy,
      const std::string& objective, const std::optional<sim::AdjointSpec>& adjoint,
      const std::string& field);

 private:
  std::mutex mutex_;
  LruMap<CachedWorld> worlds_;
  LruMap<CachedProgram> programs_;
  std::function<void(Lookup)> on_lookup_;
};

}  // namespace simgrad::server::conversion
