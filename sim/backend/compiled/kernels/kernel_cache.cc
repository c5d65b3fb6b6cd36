#include "sim/backend/compiled/kernels/kernel_cache.h"

#include <llvm/Config/llvm-config.h>
#include <llvm/Support/ErrorHandling.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sim/backend/compiled/kernels/memory_need.h"
#include "sim/backend/compiled/scalars/scalar_module.h"
#include "sim/backend/kernel_folder.h"
#include "sim/plan/structure.h"
#include "sim/text.h"

namespace simgrad::sim::compiled {
namespace {

using Loaded = absl::StatusOr<std::shared_ptr<const Kernel>>;

// Count it up where the code that is written from a plan changes.
constexpr int kWriterRevision = 14;
// Waiting for their best code; what finds no room asks again when it is used again.
constexpr size_t kMostWaiting = 64;
constexpr int kThreads = 2;
// Best code of what is not soon made waits until quick code has run for so many of its compiles.
constexpr int kRunsPerQuick = 5;
// Names of compiles that were left.
constexpr size_t kMostLeft = 4096;
// How often a caller that waits looks whether to leave.
constexpr std::chrono::milliseconds kLook{5};

const std::string& ScalarDigest() {
  static const auto* const digest = new std::string(KernelKey({ScalarBitcode()}));
  return *digest;
}

// In a file: the workspace, then the object.
std::string FileOf(const KernelObject& object) {
  std::string bytes(sizeof(object.workspace), '\0');
  std::memcpy(bytes.data(), &object.workspace, sizeof(object.workspace));
  return bytes + object.bytes;
}

std::optional<KernelObject> ObjectOf(const std::string& file) {
  KernelObject object;
  if (file.size() < sizeof(object.workspace)) return std::nullopt;
  std::memcpy(&object.workspace, file.data(), sizeof(object.workspace));
  object.bytes = file.substr(sizeof(object.workspace));
  return object;
}

std::string NameOf(const std::string& key, Effort effort) {
  return key + (effort == Effort::kBest ? "b" : "q");
}

// The processor time of this thread: a busy machine changes it little, unlike wall time.
std::chrono::nanoseconds ProcessorTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

struct Job {
  KernelRequest request;  // without the plan
  // Waiting callers and the cache of plans keep the plan alive; a job alone does not.
  std::weak_ptr<const plan::Plan> plan;
  Effort effort = Effort::kQuick;
  bool then_best = false;
  bool takes_best = false;            // where the folder has it
  bool is_covered = false;            // its memory is part of a run's
  bool is_background = false;         // no caller waits, now or later
  std::atomic<bool> is_left = false;  // ends where it can
  // Under the lock.
  int claims = 0;
  bool has_begun = false;
  bool is_done = false;
  HeldMemory memory;  // of a compile whose memory was part of runs that have left
  Loaded result = absl::InternalError("not compiled");
};

}  // namespace

struct KernelCache::Shared {
  explicit Shared(KernelCacheOptions given)
      : options(std::move(given)), folder(options.folder, kMostKernelBytes, options.watch) {}

  struct Kept {
    std::string name;
    std::shared_ptr<const Kernel> kernel;
    HeldMemory memory;
  };
  using Entries = std::list<Kept>;

  const KernelCacheOptions options;
  const KernelFolder folder;
  std::mutex mutex;
  std::condition_variable wake;     // of the compiling threads
  std::condition_variable changed;  // of callers that wait for a job, and of the destructor
  Entries entries;                  // the most recently used first
  std::unordered_map<std::string, Entries::iterator> index;
  std::unordered_map<std::string, std::shared_ptr<Job>> pending;  // by name
  std::deque<std::shared_ptr<Job>> quick, best;
  std::unordered_set<std::string> hopeless;  // keys of best code that could not be made
  std::unordered_set<std::string> left;      // names of what ended because its callers had left
  std::unordered_map<std::string, absl::Status> too_deep;  // by name; OUT_OF_RANGE
  bool stopping = false;
  int threads = 0;  // that are not parked
  CompilerUse use;

  bool IsWorthBest(const Kernel& kernel) const {
    const std::chrono::nanoseconds run(kernel.run_nanoseconds->load(std::memory_order_relaxed));
    const bool is_soon_made = kernel.compile_time <= options.soon_made &&
                              kernel.instructions <= options.most_instructions_soon;
    return is_soon_made || run >= kRunsPerQuick * kernel.compile_time;
  }

  // With the lock held.
  std::shared_ptr<const Kernel> FindLocked(const std::string& name);
  bool IsToBeMade(const std::string& key, Wanted wanted) const;
  std::shared_ptr<Job> AskLocked(const KernelRequest& request, Wanted wanted, bool is_covered,
                                 bool is_background);
  void Finish(const std::shared_ptr<Job>& job, Loaded result);
  int64_t DropOldest(int64_t most_bytes);
  std::shared_ptr<Job> NextLocked(bool only_quick);

  // Without the lock.
  void Lost(const absl::Status& why);
  void NoThread(const absl::Status& why);
  void EndWaiting(const absl::Status& why);
  void Leave(const std::shared_ptr<Job>& job);
  Loaded Make(const Job& job, const std::shared_ptr<const plan::Plan>& plan);
  Loaded FromFolder(const Job& job);
  static Claim ClaimLocked(const std::shared_ptr<Shared>& shared, std::shared_ptr<Job> job);
  static void Start(const std::shared_ptr<Shared>& shared, bool only_quick);
  static void Run(const std::shared_ptr<Shared>& shared, bool only_quick);
};

namespace {

// The compile of this thread, for the handler of LLVM's fatal errors.
struct Compiling {
  std::function<void(const char*)> lost;
};
thread_local Compiling* compiling = nullptr;

// The handler must not return, and unwinding through LLVM is no option: the thread stays.
void Lose(void*, const char* reason, bool) {
  if (compiling == nullptr) return;  // not ours: LLVM aborts
  const Compiling mine = *compiling;
  compiling = nullptr;
  mine.lost(reason);
  for (;;) pause();
}

void InstallHandlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::install_fatal_error_handler(Lose);
    llvm::install_bad_alloc_error_handler(Lose);
  });
}

}  // namespace

std::string KeyOf(const plan::Plan& plan, Part part, const WriterOptions& writer,
                  const KernelOptions& options) {
  std::string recorded;
  for (const InputForm& form : writer.inputs) {
    recorded += Cat(form.per_lane ? 1 : 0, form.per_step ? 1 : 0, form.sums_per_step ? 1 : 0, " ");
  }
  for (bool flag : {writer.stops, writer.looks, writer.decides, writer.ranges, writer.extremes,
                    writer.instances}) {
    recorded += flag ? '1' : '0';
  }
  const std::string machine =
      Cat(static_cast<int>(part), " ", IsaName(options.isa), " ", ShapeOf(options).parts,
          options.mapping == Mapping::kElements ? " elements " : " lanes ", kWriterRevision, " ",
          sizeof(GroupArgs), " " LLVM_VERSION_STRING);
  return KernelKey(
      {plan::StructureOf(plan, FunctionsOf(plan, part)), recorded, machine, ScalarDigest()});
}

std::shared_ptr<const Kernel> KernelCache::Shared::FindLocked(const std::string& name) {
  const auto found = index.find(name);
  if (found == index.end()) return nullptr;
  entries.splice(entries.begin(), entries, found->second);
  return found->second->kernel;
}

bool KernelCache::Shared::IsToBeMade(const std::string& key, Wanted wanted) const {
  const Effort effort = wanted == Wanted::kBest ? Effort::kBest : Effort::kQuick;
  if (too_deep.count(NameOf(key, effort)) != 0) return false;
  return index.count(NameOf(key, effort)) == 0 && index.count(NameOf(key, Effort::kBest)) == 0;
}

std::shared_ptr<Job> KernelCache::Shared::AskLocked(const KernelRequest& request, Wanted wanted,
                                                    bool is_covered, bool is_background) {
  const Effort effort = wanted == Wanted::kBest ? Effort::kBest : Effort::kQuick;
  const std::string name = NameOf(request.key, effort);
  if (const auto found = pending.find(name); found != pending.end()) {
    if (!found->second->has_begun) found->second->plan = request.plan;
    return found->second;
  }
  auto job = std::make_shared<Job>();
  job->request = request;
  job->request.plan = nullptr;
  job->plan = request.plan;
  job->effort = effort;
  job->then_best = wanted == Wanted::kSoonest;
  job->takes_best = wanted != Wanted::kQuick;
  job->is_covered = is_covered;
  job->is_background = is_background;
  (effort == Effort::kQuick ? quick : best).push_back(job);
  pending[name] = job;
  wake.notify_all();
  return job;
}

Claim KernelCache::Shared::ClaimLocked(const std::shared_ptr<Shared>& shared,
                                       std::shared_ptr<Job> job) {
  ++job->claims;
  job->is_left = false;
  const auto leave = [shared, job](const void*) { shared->Leave(job); };
  return Claim(job.get(), leave);
}

// A job that its last claim leaves does not begin, or ends at the next place where it can. A job
// that was left once before is compiled to its end, at the server's expense: its callers come back,
// and would never get their kernel otherwise.
void KernelCache::Shared::Leave(const std::shared_ptr<Job>& job) {
  std::shared_ptr<const plan::Plan> plan;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (--job->claims > 0 || job->is_done || job->is_background) return;
    if (!job->has_begun) {
      for (auto* queue : {&quick, &best}) {
        queue->erase(std::remove(queue->begin(), queue->end(), job), queue->end());
      }
      pending.erase(NameOf(job->request.key, job->effort));
      return;
    }
    job->is_left = left.count(NameOf(job->request.key, job->effort)) == 0;
    plan = job->is_covered ? job->plan.lock() : nullptr;
  }
  if (plan == nullptr) return;
  HeldMemory memory = options.watch->ForCompile(CompileBytes(*plan, job->request.part));
  std::lock_guard<std::mutex> lock(mutex);
  if (!job->is_done) job->memory = std::move(memory);
}

int64_t KernelCache::Shared::DropOldest(int64_t most_bytes) {
  const int64_t before = use.bytes;
  for (auto entry = entries.end(); entry != entries.begin() && use.bytes > most_bytes;) {
    const auto candidate = std::prev(entry);
    if (candidate->kernel.use_count() > 1) {  // in use: it would not free anything
      entry = candidate;
      continue;
    }
    use.bytes -= candidate->kernel->code->bytes();
    --use.kernels;
    index.erase(candidate->name);
    entry = entries.erase(candidate);
  }
  return before - use.bytes;
}

void KernelCache::Shared::Finish(const std::shared_ptr<Job>& job, Loaded result) {
  HeldMemory memory;
  if (result.ok()) memory = options.watch->ForCache((*result)->code->bytes());
  std::lock_guard<std::mutex> lock(mutex);
  const auto keep = [&](const std::string& name, const std::shared_ptr<const Kernel>& kernel) {
    if (index.count(name) != 0 || memory == nullptr) return;
    entries.push_front({name, kernel, std::move(memory)});
    index[name] = entries.begin();
    use.bytes += kernel->code->bytes();
    ++use.kernels;
  };
  pending.erase(NameOf(job->request.key, job->effort));
  if (result.ok()) {
    const Effort made = (*result)->effort;
    keep(NameOf(job->request.key, made), *result);
    const bool has_best = index.count(NameOf(job->request.key, Effort::kBest)) != 0;
    KernelRequest next = job->request;
    next.plan = job->plan.lock();
    if (job->then_best && !has_best && IsWorthBest(**result) && best.size() < kMostWaiting &&
        next.plan != nullptr) {
      AskLocked(next, Wanted::kBest, false, /*is_background=*/true);
    }
  } else if (absl::IsOutOfRange(result.status())) {
    constexpr size_t kMostDeep = 1024;
    if (too_deep.size() >= kMostDeep) too_deep.clear();
    too_deep[NameOf(job->request.key, job->effort)] = result.status();
    if (job->effort == Effort::kBest) hopeless.insert(job->request.key);
  } else if (!absl::IsCancelled(result.status())) {
    ++use.failed;
    const bool may_come_right = absl::IsResourceExhausted(result.status());
    if (job->effort == Effort::kBest && !may_come_right) hopeless.insert(job->request.key);
  } else if (job->is_left) {
    ++use.left;
    if (left.size() >= kMostLeft) left.clear();
    left.insert(NameOf(job->request.key, job->effort));
  }
  job->result = std::move(result);
  job->is_done = true;
  job->memory = nullptr;
  DropOldest(options.most_bytes);
  changed.notify_all();
}

std::shared_ptr<Job> KernelCache::Shared::NextLocked(bool only_quick) {
  for (auto* queue : {&quick, &best}) {
    if (queue == &best && only_quick) break;
    if (queue->empty()) continue;
    std::shared_ptr<Job> job = queue->front();
    queue->pop_front();
    job->has_begun = true;
    return job;
  }
  return nullptr;
}

// Only the best code is kept there.
Loaded KernelCache::Shared::FromFolder(const Job& job) {
  const std::optional<std::string> file = folder.Find(job.request.key);
  if (!file) return absl::NotFoundError("");
  const std::optional<KernelObject> object = ObjectOf(*file);
  if (!object) return absl::NotFoundError("");
  absl::StatusOr<Kernel> kernel = LoadKernel(*object, job.request.part);
  if (!kernel.ok()) return kernel.status();
  kernel->effort = Effort::kBest;
  std::lock_guard<std::mutex> lock(mutex);
  ++use.loaded_from_disk;
  return std::make_shared<const Kernel>(*std::move(kernel));
}

Loaded KernelCache::Shared::Make(const Job& job, const std::shared_ptr<const plan::Plan>& plan) {
  if (job.takes_best) {
    Loaded found = FromFolder(job);
    if (found.ok()) return found;
  }
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds used = ProcessorTime();
  if (options.before_compile) options.before_compile(job.effort);
  if (plan == nullptr) return absl::CancelledError("nothing holds the plan any more");
  HeldMemory memory;
  if (!job.is_covered) {
    const int64_t bytes = CompileBytes(*plan, job.request.part);
    memory = options.watch->ForCompile(bytes);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(
          Cat("there is no memory now for the ", bytes, " bytes that compiling takes"));
    }
  }
  KernelOptions how = job.request.options;
  how.effort = job.effort;
  const absl::StatusOr<KernelObject> object = CompileKernel(
      *plan, job.request.part, job.request.writer, how, [&job] { return job.is_left.load(); });
  if (!object.ok()) return object.status();
  absl::StatusOr<Kernel> kernel = LoadKernel(*object, job.request.part);
  if (!kernel.ok()) return kernel.status();
  kernel->effort = job.effort;
  kernel->compile_time = ProcessorTime() - used;
  if (job.effort == Effort::kBest) folder.Keep(job.request.key, FileOf(*object));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  options.watch->Compiled(
      job.effort == Effort::kBest ? CompileQuality::kBest : CompileQuality::kQuick, seconds);
  std::lock_guard<std::mutex> lock(mutex);
  ++use.compiled;
  use.compile_seconds += seconds;
  return std::make_shared<const Kernel>(*std::move(kernel));
}

void KernelCache::Shared::Run(const std::shared_ptr<Shared>& shared, bool only_quick) {
  for (;;) {
    std::shared_ptr<Job> job;
    std::shared_ptr<const plan::Plan> plan;
    {
      std::unique_lock<std::mutex> lock(shared->mutex);
      shared->wake.wait(lock, [&] {
        return shared->stopping || (job = shared->NextLocked(only_quick)) != nullptr;
      });
      if (shared->stopping) {
        --shared->threads;
        shared->changed.notify_all();
        return;
      }
      plan = job->plan.lock();
    }
    Compiling mine = {[&](const char* reason) {
      const absl::Status why = absl::InternalError(Cat("the compiler gave up: ", reason));
      shared->Finish(job, why);
      shared->Lost(why);
      try {
        Start(shared, only_quick);
      } catch (const std::system_error&) {
        shared->NoThread(why);
      }
    }};
    compiling = &mine;
    Loaded made = absl::InternalError("");
    try {
      made = shared->Make(*job, plan);
    } catch (const std::exception& error) {  // out of memory, above all
      made = absl::InternalError(error.what());
    }
    compiling = nullptr;
    shared->Finish(job, std::move(made));
  }
}

// The last thread takes with it what still waits.
void KernelCache::Shared::Lost(const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    ++use.lost_threads;
    --threads;
    changed.notify_all();
    if (use.lost_threads < kMostLost || threads > 0) return;
  }
  EndWaiting(why);
}

// No thread is to be had; the other ones go on.
void KernelCache::Shared::NoThread(const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (threads > 0) return;
  }
  EndWaiting(why);
}

void KernelCache::Shared::EndWaiting(const absl::Status& why) {
  std::vector<std::shared_ptr<Job>> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [name, job] : pending) waiting.push_back(job);
  }
  for (const std::shared_ptr<Job>& job : waiting) Finish(job, why);
}

void KernelCache::Shared::Start(const std::shared_ptr<Shared>& shared, bool only_quick) {
  std::lock_guard<std::mutex> lock(shared->mutex);
  if (shared->stopping || shared->use.lost_threads >= kMostLost) return;
  std::thread([shared, only_quick] { Run(shared, only_quick); }).detach();
  ++shared->threads;  // it waits for the lock
}

KernelCache::KernelCache(KernelCacheOptions options)
    : shared_(std::make_shared<Shared>(std::move(options))) {
  InstallHandlers();
  for (int i = 0; i < kThreads; ++i) Shared::Start(shared_, /*only_quick=*/i > 0);
}

KernelCache::~KernelCache() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->stopping = true;
  shared_->wake.notify_all();
  shared_->changed.wait(lock, [this] { return shared_->threads == 0; });
}

std::shared_ptr<const Kernel> KernelCache::Find(const std::string& key) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  for (Effort effort : {Effort::kBest, Effort::kQuick}) {
    if (auto kernel = shared_->FindLocked(NameOf(key, effort))) return kernel;
  }
  return nullptr;
}

void KernelCache::Ask(const KernelRequest& request, Wanted wanted) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  if (!shared_->IsToBeMade(request.key, wanted) || shared_->quick.size() >= kMostWaiting) return;
  shared_->AskLocked(request, wanted, /*is_covered=*/false, /*is_background=*/true);
}

Claim KernelCache::AskForRun(const KernelRequest& request, Wanted wanted) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  if (!shared_->IsToBeMade(request.key, wanted)) return nullptr;
  return Shared::ClaimLocked(shared_, shared_->AskLocked(request, wanted, /*is_covered=*/true,
                                                         /*is_background=*/false));
}

Loaded KernelCache::Get(const KernelRequest& request, Wanted wanted,
                        const WorkMeter::StopCallback& stop) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  const auto found = [&](Effort effort) {
    auto kernel = shared_->FindLocked(NameOf(request.key, effort));
    if (kernel != nullptr) ++shared_->use.loaded_from_memory;
    return kernel;
  };
  if (wanted != Wanted::kQuick) {
    if (auto kernel = found(Effort::kBest)) return kernel;
  }
  if (wanted != Wanted::kBest) {
    if (auto kernel = found(Effort::kQuick)) {
      const bool asks = wanted == Wanted::kSoonest && shared_->IsWorthBest(*kernel) &&
                        shared_->best.size() < kMostWaiting &&
                        shared_->hopeless.count(request.key) == 0;
      if (asks) shared_->AskLocked(request, Wanted::kBest, false, /*is_background=*/true);
      return kernel;
    }
  }
  const Effort effort = wanted == Wanted::kBest ? Effort::kBest : Effort::kQuick;
  const auto deep = shared_->too_deep.find(NameOf(request.key, effort));
  if (deep != shared_->too_deep.end()) return deep->second;
  if (shared_->threads == 0) {
    return absl::InternalError("the compiler failed too often");
  }
  for (;;) {
    const std::shared_ptr<Job> job =
        shared_->AskLocked(request, wanted, /*is_covered=*/wanted != Wanted::kBest,
                           /*is_background=*/false);
    Claim claim = Shared::ClaimLocked(shared_, job);
    while (!job->is_done) {
      shared_->changed.wait_for(lock, kLook);
      if (job->is_done || !stop) continue;
      lock.unlock();
      if (stop()) return StopRequested::Status();
      lock.lock();
    }
    Loaded result = job->result;
    lock.unlock();
    claim = nullptr;
    // A job of the background that had begun after its plan was gone: it is asked for anew.
    if (!absl::IsCancelled(result.status())) return result;
    lock.lock();
  }
}

int64_t KernelCache::Relieve(int64_t bytes) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->DropOldest(std::max<int64_t>(shared_->use.bytes - bytes, 0));
}

CompilerUse KernelCache::use() const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  CompilerUse use = shared_->use;
  use.pending = static_cast<int64_t>(shared_->pending.size());
  use.refused_files = static_cast<uint64_t>(shared_->folder.refused());
  return use;
}

}  // namespace simgrad::sim::compiled
