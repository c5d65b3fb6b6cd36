#include "tests/stand_in_gpu/machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

namespace simgrad::stand_in {
namespace {

constexpr uint8_t kFresh = 0xCB;
constexpr uint8_t kGuard = 0xA7;
constexpr uint8_t kGiven = 0xDB;
constexpr size_t kGuardBytes = 64;
constexpr size_t kKeptBytes = size_t{256} << 20;

uint8_t* Host(CUdeviceptr data) { return reinterpret_cast<uint8_t*>(data); }

bool AreAll(const uint8_t* data, size_t bytes, uint8_t value) {
  return bytes == 0 || (data[0] == value && std::memcmp(data, data + 1, bytes - 1) == 0);
}

int64_t Number(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoll(text, nullptr, 10);
}

CUresult ErrorIn(const std::string& path) {
  int error = 0;
  if (!path.empty()) std::ifstream(path) >> error;
  return static_cast<CUresult>(error);
}

bool IsSticky(CUresult error) {
  return error != CUDA_SUCCESS && error != CUDA_ERROR_OUT_OF_MEMORY &&
         error != CUDA_ERROR_INVALID_VALUE && error != CUDA_ERROR_INVALID_CONTEXT &&
         error != CUDA_ERROR_NOT_FOUND && error != CUDA_ERROR_INVALID_IMAGE &&
         error != CUDA_ERROR_DEVICE_UNAVAILABLE && error != CUDA_ERROR_NOT_SUPPORTED &&
         error != CUDA_ERROR_NOT_READY && error != CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

Settings SettingsFromEnvironment() {
  Settings settings;
  settings.gpus = static_cast<int>(Number("SIMGRAD_STAND_IN_GPUS", settings.gpus));
  settings.memory_bytes = Number("SIMGRAD_STAND_IN_MEMORY", settings.memory_bytes);
  settings.memory_pools = static_cast<int>(Number("SIMGRAD_STAND_IN_POOLS", settings.memory_pools));
  settings.refusing = static_cast<int>(Number("SIMGRAD_STAND_IN_REFUSING", settings.refusing));
  settings.local_bytes = Number("SIMGRAD_STAND_IN_LOCAL", settings.local_bytes);
  settings.watched = static_cast<int>(Number("SIMGRAD_STAND_IN_WATCHED", settings.watched));
  settings.seed = static_cast<uint64_t>(Number("SIMGRAD_STAND_IN_SEED", 1));
  if (const char* path = std::getenv("SIMGRAD_STAND_IN_ERROR_FILE")) settings.error_file = path;
  return settings;
}

Machine& Machine::Get() {
  static auto* const machine = new Machine;
  return *machine;
}

Machine::Machine() { Reset(SettingsFromEnvironment()); }

void Machine::Forget() {
  for (const auto& [data, block] : held_) std::free(Host(data));
  for (const auto& [data, block] : given_) std::free(Host(data));
  for (const auto& [data, bytes] : pinned_) std::free(const_cast<void*>(data));
  held_.clear();
  given_.clear();
  pinned_.clear();
  streams_.clear();
}

void Machine::Reset(const Settings& settings) {
  const std::lock_guard lock(mutex_);
  Forget();
  settings_ = settings;
  die_.seed(settings.seed);
  calls_ = 0;
  events_ = 0;
  failed_ = "";
  given_bytes_ = 0;
  kept_.clear();
  thresholds_.clear();
  local_.clear();
  broken_ = false;
  sticky_ = CUDA_SUCCESS;
}

CUresult Machine::Fail(CUresult error) {
  if (IsSticky(error)) sticky_ = error;
  return error;
}

CUresult Machine::Begin(const char* call) {
  if (sticky_ != CUDA_SUCCESS) return sticky_;
  if (const CUresult error = ErrorIn(settings_.error_file); error != CUDA_SUCCESS) {
    return Fail(error);
  }
  if (calls_++ == settings_.failing_call) {
    failed_ = call;
    return Fail(settings_.failure);
  }
  MoveOn();
  return sticky_;
}

// Some of what waits, in an order that the streams leave open.
void Machine::MoveOn() {
  while (!streams_.empty() && die_() % 4 == 0) {
    Stream* const stream = streams_[die_() % streams_.size()].get();
    if (stream->waiting.empty()) continue;
    const Operation& first = stream->waiting.front();
    if (first.after == nullptr || first.after->happened >= first.times) RunFirst(stream);
  }
}

CUresult Machine::Place(Block block, CUdeviceptr* data) {
  auto* const place = static_cast<uint8_t*>(std::malloc(block.bytes + kGuardBytes));
  if (place == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(place, kFresh, block.bytes);
  std::memset(place + block.bytes, kGuard, kGuardBytes);
  *data = reinterpret_cast<CUdeviceptr>(place);
  held_[*data] = block;
  return CUDA_SUCCESS;
}

CUresult Machine::Take(int gpu, size_t bytes, CUdeviceptr* data) {
  if (static_cast<int64_t>(bytes) > FreeBytes(gpu)) return CUDA_ERROR_OUT_OF_MEMORY;
  return Place({gpu, bytes, false}, data);
}

CUresult Machine::TakeFromPool(int gpu, size_t bytes, CUdeviceptr* data) {
  if (settings_.memory_pools == 0) return CUDA_ERROR_NOT_SUPPORTED;
  std::multiset<size_t>& kept = kept_[gpu];
  if (const auto piece = kept.lower_bound(bytes); piece != kept.end()) {
    kept.erase(piece);
  } else if (static_cast<int64_t>(bytes) > FreeBytes(gpu)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return Place({gpu, bytes, true}, data);
}

CUresult Machine::Free(CUdeviceptr data) {
  const auto found = held_.find(data);
  if (found == held_.end()) return CUDA_ERROR_INVALID_VALUE;
  const Block block = found->second;
  broken_ = broken_ || !AreAll(Host(data) + block.bytes, kGuardBytes, kGuard);
  std::memset(Host(data), kGiven, block.bytes);
  held_.erase(found);
  if (block.of_pool) kept_[block.gpu].insert(block.bytes);
  given_.emplace_back(data, block);
  given_bytes_ += block.bytes;
  while (given_bytes_ > kKeptBytes) {
    const auto& [oldest, old] = given_.front();
    broken_ = broken_ || !AreAll(Host(oldest), old.bytes, kGiven);
    given_bytes_ -= old.bytes;
    std::free(Host(oldest));
    given_.pop_front();
  }
  return CUDA_SUCCESS;
}

CUresult Machine::Give(CUdeviceptr data) {
  const auto found = held_.find(data);
  const bool fits = found != held_.end() && !found->second.of_pool;
  return fits ? Free(data) : CUDA_ERROR_INVALID_VALUE;
}

CUresult Machine::GiveLater(CUdeviceptr data, Stream* stream) {
  const auto found = held_.find(data);
  if (found == held_.end() || !found->second.of_pool) return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.frees = true;
  operation.run = [this, data] { return Free(data); };
  return Push(stream, std::move(operation));
}

void Machine::TrimPool(int gpu, size_t keep) {
  std::multiset<size_t>& kept = kept_[gpu];
  while (!kept.empty() && KeptByPool(gpu) > static_cast<int64_t>(keep)) kept.erase(kept.begin());
}

void Machine::Synchronised(int gpu) { TrimPool(gpu, thresholds_[gpu]); }

CUresult Machine::TakeLocal(int gpu, int64_t bytes) {
  int64_t& taken = local_[gpu];
  if (bytes - taken > FreeBytes(gpu)) return CUDA_ERROR_OUT_OF_MEMORY;
  taken = std::max(taken, bytes);
  return CUDA_SUCCESS;
}

int64_t Machine::FreeBytes(int gpu) const {
  const auto local = local_.find(gpu);
  return settings_.memory_bytes - Held(gpu) - KeptByPool(gpu) -
         (local == local_.end() ? 0 : local->second);
}

int64_t Machine::KeptByPool(int gpu) const {
  const auto found = kept_.find(gpu);
  if (found == kept_.end()) return 0;
  return static_cast<int64_t>(
      std::accumulate(found->second.begin(), found->second.end(), size_t{0}));
}

CUresult Machine::TakePinned(size_t bytes, void** data) {
  *data = std::malloc(std::max<size_t>(bytes, 1));
  if (*data == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(*data, kFresh, bytes);
  pinned_[*data] = bytes;
  return CUDA_SUCCESS;
}

CUresult Machine::GivePinned(void* data) {
  if (pinned_.erase(data) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(data);
  return CUDA_SUCCESS;
}

bool Machine::IsPinned(const void* data, size_t bytes) const {
  const auto after = pinned_.upper_bound(data);
  if (after == pinned_.begin()) return false;
  const auto& [start, held] = *std::prev(after);
  return static_cast<const uint8_t*>(data) + bytes <= static_cast<const uint8_t*>(start) + held;
}

bool Machine::Holds(CUdeviceptr data, size_t bytes) const {
  const auto after = held_.upper_bound(data);
  if (after == held_.begin()) return false;
  const auto& [start, block] = *std::prev(after);
  return data + bytes <= start + block.bytes;
}

int64_t Machine::Held(int gpu) const {
  int64_t bytes = 0;
  for (const auto& [data, block] : held_) {
    bytes += block.gpu == gpu ? static_cast<int64_t>(block.bytes) : 0;
  }
  return bytes;
}

int64_t Machine::PinnedBytes() const {
  int64_t sum = 0;
  for (const auto& [data, bytes] : pinned_) sum += static_cast<int64_t>(bytes);
  return sum;
}

bool Machine::AllWhole() const {
  return !broken_ && std::all_of(held_.begin(), held_.end(), [](const auto& entry) {
    return AreAll(Host(entry.first) + entry.second.bytes, kGuardBytes, kGuard);
  }) && std::all_of(given_.begin(), given_.end(), [](const auto& entry) {
    return AreAll(Host(entry.first), entry.second.bytes, kGiven);
  });
}

Stream* Machine::OpenStream(int gpu) {
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->gpu = gpu;
  return streams_.back().get();
}

CUresult Machine::CloseStream(Stream* stream) {
  const CUresult result = Drain(stream);  // work given to a stream is done, closed or not
  std::erase_if(streams_, [stream](const auto& owned) { return owned.get() == stream; });
  return result;
}

CUresult Machine::Push(Stream* stream, Operation operation) {
  // Memory goes back as early as may be, everything else as late.
  if (operation.frees && stream->waiting.empty()) return operation.run();
  stream->waiting.push_back(std::move(operation));
  return CUDA_SUCCESS;
}

CUresult Machine::RunFirst(Stream* stream) {
  if (sticky_ != CUDA_SUCCESS) return sticky_;
  const Operation operation = std::move(stream->waiting.front());
  stream->waiting.pop_front();
  if (operation.after != nullptr) {
    const CUresult waited = AwaitEvent(operation.after, operation.times);
    if (waited != CUDA_SUCCESS) return waited;
  }
  return Fail(operation.run ? operation.run() : CUDA_SUCCESS);
}

CUresult Machine::Drain(Stream* stream) {
  while (!stream->waiting.empty()) {
    const CUresult result = RunFirst(stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return sticky_;
}

CUresult Machine::DrainAll(int gpu) {
  for (const auto& stream : streams_) {
    const CUresult result = stream->gpu == gpu ? Drain(stream.get()) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
  }
  return sticky_;
}

CUresult Machine::AwaitEvent(const std::shared_ptr<Event>& event, uint64_t times) {
  while (event->happened < times && event->stream != nullptr && !event->stream->waiting.empty()) {
    const CUresult result = RunFirst(event->stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return sticky_;
}

}  // namespace simgrad::stand_in
