#include "server/serve.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/config/parse_flags.h"
#include "server/scheduling/steady_time.h"
#include "server/service/request_log.h"

namespace simgrad::server {
namespace {

// Writes gRPC's messages, mostly of failed handshakes, as lines like the others: bounded, quoted,
// written in the background. Messages hold what strangers sent, so they are cut.
void LogOfGrpc(gpr_log_func_args* args) {
  using service::LogLevel;
  // An error of a connection is no error of ours.
  const bool error = args->severity == GPR_LOG_SEVERITY_ERROR;
  const LogLevel level = error ? LogLevel::kWarning : LogLevel::kInfo;
  constexpr size_t kMaxMessage = 400;
  service::LogNote(level,
                   absl::StrCat("gRPC: ", std::string(args->message).substr(0, kMaxMessage)));
}

service::LogLevel LevelNamed(const std::string& name) {
  using service::LogLevel;
  if (name == "error") return LogLevel::kError;
  return name == "warning" ? LogLevel::kWarning : LogLevel::kInfo;
}

// SIGTERM and SIGINT.
sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// The time to end after the work has been cancelled: a second to tell the callers (FinishWork), and
// one for the log.
constexpr absl::Duration kLastWords = absl::Seconds(2);

// The time to send the spans that wait, after the work has ended.
constexpr absl::Duration kLastSpans = absl::Seconds(2);

// Whether the operator set the allocator's parameter, by its tunable or by its older name.
bool IsSetByOperator(const char* parameter, const char* older) {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  const std::string tunable = absl::StrCat("glibc.malloc.", parameter, "=");
  return std::getenv(older) != nullptr ||
         (tunables != nullptr && std::strstr(tunables, tunable.c_str()) != nullptr);
}

// Lets the allocator keep a few MiB that a request freed for the next request, where by default it
// returns most of them: 236 pages were made anew, and cleared, for each gradient of one small
// instance over 1,000 steps, a third of its processor time. At the end of an arena kKept bytes may
// stay free: 4 MiB are too few for 2,000 steps. Blocks of kMapped bytes are returned at once. Parameters
// that the operator set take precedence.
void KeepFreedMemory() {
  constexpr int kKept = 6 << 20;
  constexpr int kMapped = 2 << 20;
  constexpr int kGrowth = 1 << 20;
  const auto set = [](int parameter, int value, const char* name, const char* older) {
    if (!IsSetByOperator(name, older)) mallopt(parameter, value);
  };
  set(M_MMAP_THRESHOLD, kMapped, "mmap_threshold", "MALLOC_MMAP_THRESHOLD_");
  set(M_TRIM_THRESHOLD, kKept, "trim_threshold", "MALLOC_TRIM_THRESHOLD_");
  set(M_TOP_PAD, kGrowth, "top_pad", "MALLOC_TOP_PAD_");
}

// Threads get a stack of 16 MiB, of which only what is used takes memory: a kernel may use 6
// (sim/backend/compiled/machine/object_code.h), and the limit of the shell may leave less.
void GiveThreadsTheirStack() {
  constexpr size_t kBytes = size_t{16} << 20;
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  size_t bytes = 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  if (bytes < kBytes && pthread_attr_setstacksize(&attributes, kBytes) == 0) {
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
}

// A server whose work may be cancelled from another thread, as long as it is there.
class Hurried {
 public:
  explicit Hurried(service::Server* server) : server_(server) {}
  void CancelWork() {
    const std::lock_guard lock(mutex_);
    if (server_ != nullptr) server_->CancelWork();
  }
  void Forget() {
    const std::lock_guard lock(mutex_);
    server_ = nullptr;
  }

 private:
  std::mutex mutex_;
  service::Server* server_;
};

// Without a thread to be had, what it would do is left out.
void StartDetached(std::function<void()> run) {
  try {
    std::thread(std::move(run)).detach();
  } catch (const std::system_error& error) {
    service::LogNote(service::LogLevel::kError, absl::StrCat("no thread: ", error.what()));
  }
}

// Ends the process with `code` at that time, whatever runs or hangs then. A signal before cancels
// the work of `server`, and leaves the process `grace`.
void EndAt(absl::Time end, absl::Duration grace, ExitCode code,
           const std::shared_ptr<Hurried>& server) {
  const auto run = [end, grace, code, server]() mutable {
    const sigset_t signals = EndSignals();
    for (bool hurried = false; SteadyNow() < end;) {
      const timespec rest = absl::ToTimespec(end - SteadyNow());
      if (sigtimedwait(&signals, nullptr, &rest) < 0 || std::exchange(hurried, true)) continue;
      service::LogNote(service::LogLevel::kWarning, "a second signal; the work is cancelled");
      end = std::min(end, SteadyNow() + grace);
      // It may meet what hangs.
      StartDetached([server] { server->CancelWork(); });
    }
    service::LogNote(service::LogLevel::kError, "not all work ends; the process does");
    service::FlushLog(absl::Milliseconds(200));
    _exit(code);
  };
  StartDetached(run);
}

// Ends the process at a signal that comes before the server has started, which may take minutes of compiling.
void EndWhileStarting(const std::shared_ptr<const std::atomic<bool>>& started) {
  StartDetached([started] {
    constexpr timespec kLook = {0, 200'000'000};
    const sigset_t signals = EndSignals();
    while (!*started) {
      const int signal = sigtimedwait(&signals, nullptr, &kLook);
      if (signal <= 0) continue;
      if (*started) {
        kill(getpid(), signal);  // for the server
        return;
      }
      service::LogNote(service::LogLevel::kInfo, "asked to end before it had started");
      service::FlushLog(absl::Milliseconds(200));
      _exit(kStopped);
    }
  });
}

// Ends the process with `code` where `server` does not end soon. All work has ended, so nobody waits for
// what is left, such as a kernel that is being improved: compiling it takes up to minutes.
void Release(std::unique_ptr<service::Server> server, ExitCode code) {
  constexpr absl::Duration kSoon = absl::Milliseconds(500);
  const auto ended = std::make_shared<absl::Notification>();
  StartDetached([ended, code] {
    if (!ended->WaitForNotificationWithTimeout(kSoon)) _exit(code);
  });
  server.reset();
  ended->Notify();
}

// Ends the process after something that cannot be mended: it waits for no thread.
[[noreturn]] void Abandon(service::Server& server, ExitCode code, const std::string& why,
                          absl::Duration time) {
  service::LogNote(service::LogLevel::kError, absl::StrCat(why, "; the process ends"));
  EndAt(SteadyNow() + std::max(time, kLastWords), kLastWords, code,
        std::make_shared<Hurried>(&server));
  server.FinishWork(std::max(time - kLastWords, absl::ZeroDuration()));
  server.CloseSpans(absl::Milliseconds(500));
  service::FlushLog(absl::Seconds(1));
  _exit(code);
}

}  // namespace

int Complain(const absl::Status& status, ExitCode code) {
  std::fprintf(stderr, "simgrad-server: %s\n", std::string(status.message()).c_str());
  return code;
}

int Serve(const config::ServerConfig& config,
          const std::function<absl::StatusOr<std::unique_ptr<service::Server>>()>& create) {
  // Blocked before any thread starts, so that only the wait below sees them.
  sigset_t signals = EndSignals();
  sigaddset(&signals, SIGHUP);  // the server reads its files again
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // the write of a file that may not grow fails
  KeepFreedMemory();
  GiveThreadsTheirStack();

#ifdef NDEBUG
  // Debian builds Abseil with its checks: each lock of gRPC would be looked for in a graph.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  // Callers must not be able to write to our log at will.
  google::protobuf::SetLogHandler(nullptr);
  gpr_set_log_function(&LogOfGrpc);

  service::SetUpLog({LevelNamed(config.log_level), config.log_lines_per_second});
  absl::StatusOr<std::unique_ptr<service::Server>> created;
  const auto started = std::make_shared<std::atomic<bool>>(false);
  try {
    // The first note starts the thread that writes them.
    for (const std::string& warning : config::Warnings(config)) {
      service::LogNote(service::LogLevel::kWarning, warning);
    }
    service::FlushLog(absl::ZeroDuration());
    EndWhileStarting(started);
    created = create();
  } catch (const std::system_error& error) {
    created = absl::UnavailableError(absl::StrCat("no thread is to be had: ", error.what()));
  }
  if (!created.ok()) {
    const bool is_flag = absl::IsInvalidArgument(created.status());
    return Complain(created.status(), is_flag ? kBadFlags : kCouldNotStart);
  }
  *started = true;
  service::Server& server = **created;
  std::printf("%s\n", server.Banner().c_str());
  std::fflush(stdout);

  // Other reasons to end the process are looked for between signals.
  constexpr timespec kLook = {0, 200'000'000};
  for (;;) {
    const int signal = sigtimedwait(&signals, nullptr, &kLook);
    if (signal == SIGHUP) {
      service::LogNote(service::LogLevel::kInfo, server.ReadFilesAgain()
                                                     ? "SIGHUP: the TLS files were read again"
                                                     : "SIGHUP: no TLS files were read");
    } else if (signal > 0) {
      break;
    }
    // A call into the driver of a lost device may never return, nor may whatever made the check of
    // ourselves fail.
    if (server.HasLostDevice()) {
      Abandon(server, kLostDevice, "the device is lost", config.fatal_exit_after);
    }
    if (server.HasFailedSelfCheck()) {
      Abandon(server, kFailedSelfCheck, "the server does not serve any more", absl::Seconds(3));
    }
  }
  service::LogNote(service::LogLevel::kInfo, "draining");
  const auto hurried = std::make_shared<Hurried>(&server);
  const absl::Duration spans = config.otlp_endpoint.empty() ? absl::ZeroDuration() : kLastSpans;
  const absl::Duration grace = kLastWords + spans;
  EndAt(SteadyNow() + config.drain_timeout + grace, grace, kCancelledWork, hurried);
  const bool drained = server.Drain(config.drain_timeout);
  hurried->Forget();
  server.CloseSpans(spans);
  service::LogNote(drained ? service::LogLevel::kInfo : service::LogLevel::kWarning,
                   drained ? "drained" : "drained; work had to be cancelled");
  service::FlushLog(absl::Seconds(1));
  const ExitCode code = drained ? kStopped : kCancelledWork;
  Release(*std::move(created), code);
  return code;
}

}  // namespace simgrad::server
