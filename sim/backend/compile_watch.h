// Tells of an executor's compilations, and gives memory for its code.
//
// Threads: any. ForCompile and ForCache may call Executor::Relieve, and nothing else of the executor: call them
// without a lock that Relieve takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace simgrad::sim {

// Gives its bytes back when the last copy goes.
using HeldMemory = std::shared_ptr<const void>;

enum class CompileQuality : uint8_t {
  kQuick,  // to run soon
  kBest,
};

class CompileWatch {
 public:
  virtual ~CompileWatch() = default;
  // Bytes that one compilation takes while it runs; null: there are none now.
  virtual HeldMemory ForCompile(int64_t bytes) = 0;
  // Bytes of code and plans that are kept; null: there are none, and nothing is kept.
  virtual HeldMemory ForCache(int64_t bytes) = 0;
  virtual void Compiled(CompileQuality quality, double seconds) = 0;
  // A file of compiled code is not used. Calls nothing of the executor.
  virtual void Refused(const std::string& file, const std::string& why) = 0;
};

// Has memory for everything and reports nothing.
class NoCompileWatch final : public CompileWatch {
 public:
  HeldMemory ForCompile(int64_t) override { return std::make_shared<char>(); }
  HeldMemory ForCache(int64_t) override { return std::make_shared<char>(); }
  void Compiled(CompileQuality, double) override {}
  void Refused(const std::string&, const std::string&) override {}
};

}  // namespace simgrad::sim
