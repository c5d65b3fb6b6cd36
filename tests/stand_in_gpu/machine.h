// A pretended GPU machine: memory, streams and events as the CUDA driver's documentation promises
// them, and no better.
//
// Work given to a stream is done late: when somebody waits for it, or when a seeded die says so;
// streams pass each other unless an event says otherwise. Copies to memory that is not pinned give
// the bytes at once, as the driver does; all others read and write when the work is done. Memory is
// patterned when taken and when given back, and guarded behind its end. So a missing wait, a use
// after a free and a write past an end are seen. Errors: as CUresult. Threads: any, under one lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace simgrad::stand_in {

struct Settings {
  int gpus = 1;
  int64_t memory_bytes = int64_t{4} << 30;  // of each
  std::string name = "stand-in GPU";
  int memory_pools = 1;     // 0: memory comes from the driver, piece by piece
  int refusing = -1;        // the GPU that no process may open
  int64_t local_bytes = 0;  // of a thread, of every kernel
  int watched = 0;          // 1: a display's watchdog stops long launches
  uint64_t seed = 1;
  // A call (counted from 0 over all that can fail) that fails, and how. Negative: none.
  int64_t failing_call = -1;
  CUresult failure = CUDA_SUCCESS;
  // While this file exists, calls fail with the CUresult whose number it holds.
  std::string error_file;
};
// SIMGRAD_STAND_IN_GPUS, _MEMORY, _POOLS, _REFUSING, _LOCAL, _WATCHED, _SEED, _ERROR_FILE.
Settings SettingsFromEnvironment();

struct Event {
  uint64_t recorded = 0;            // how often asked for
  uint64_t happened = 0;            // how often done
  double seconds = 0.0;             // when it last happened
  struct Stream* stream = nullptr;  // of the last record
};

struct Operation {
  std::function<CUresult()> run;
  // Not before this event has happened so often.
  std::shared_ptr<Event> after;
  uint64_t times = 0;
  bool frees = false;
};

struct Stream {
  int gpu = 0;
  std::deque<Operation> waiting;
};

class Machine {
 public:
  static Machine& Get();
  // Forgets all streams, memory and errors.
  void Reset(const Settings& settings);

  // Of every call that can fail: counts it, moves other work on, tells an error that is to be told.
  CUresult Begin(const char* call);
  // After a sticky error every call fails with it.
  CUresult Fail(CUresult error);

  CUresult Take(int gpu, size_t bytes, CUdeviceptr* data);  // without the pool
  CUresult Give(CUdeviceptr data);                          // of that
  // The pool keeps what is given back, piece by piece, and uses a piece for one request alone.
  CUresult TakeFromPool(int gpu, size_t bytes, CUdeviceptr* data);
  CUresult GiveLater(CUdeviceptr data, Stream* stream);
  void TrimPool(int gpu, size_t keep);
  // Local memory of kernels, of which the GPU never gives any back.
  CUresult TakeLocal(int gpu, int64_t bytes);
  // What a synchronisation may release goes back.
  void Synchronised(int gpu);
  void KeepAtMost(int gpu, size_t threshold) { thresholds_[gpu] = threshold; }
  int64_t KeptByPool(int gpu) const;
  int64_t FreeBytes(int gpu) const;
  CUresult TakePinned(size_t bytes, void** data);
  CUresult GivePinned(void* data);
  bool IsPinned(const void* data, size_t bytes = 1) const;
  // Whether [data, data + bytes) lies in memory that is held.
  bool Holds(CUdeviceptr data, size_t bytes) const;
  int64_t Held(int gpu) const;
  int64_t PinnedBytes() const;
  // Whether nothing was written past an end or after a free.
  bool AllWhole() const;

  Stream* OpenStream(int gpu);
  CUresult CloseStream(Stream* stream);
  CUresult Push(Stream* stream, Operation operation);
  CUresult Drain(Stream* stream);
  CUresult DrainAll(int gpu);
  CUresult AwaitEvent(const std::shared_ptr<Event>& event, uint64_t times);

  // Events that are made and not destroyed yet.
  int64_t& events() { return events_; }
  std::recursive_mutex& mutex() { return mutex_; }
  const Settings& settings() const { return settings_; }
  int64_t calls() const { return calls_; }
  const char* failed() const { return failed_; }
  std::mt19937_64& die() { return die_; }

 private:
  struct Block {
    int gpu = 0;
    size_t bytes = 0;
    bool of_pool = false;
  };
  Machine();
  CUresult Place(Block block, CUdeviceptr* data);
  CUresult Free(CUdeviceptr data);
  CUresult RunFirst(Stream* stream);
  void MoveOn();
  void Forget();

  std::recursive_mutex mutex_;
  Settings settings_;
  std::mt19937_64 die_;
  int64_t calls_ = 0;
  int64_t events_ = 0;
  const char* failed_ = "";
  CUresult sticky_ = CUDA_SUCCESS;
  std::map<CUdeviceptr, Block> held_;
  std::deque<std::pair<CUdeviceptr, Block>> given_;  // kept a while, to see who still writes there
  size_t given_bytes_ = 0;
  bool broken_ = false;
  std::map<int, std::multiset<size_t>> kept_;  // sizes, by GPU
  std::map<int, size_t> thresholds_;
  std::map<int, int64_t> local_;  // taken, by GPU
  std::map<const void*, size_t> pinned_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace simgrad::stand_in
