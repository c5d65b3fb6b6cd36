#include "server/tracing/span_exporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace simgrad::server::tracing {
namespace {

bool HasNoAnswer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace

SpanExporter::SpanExporter(std::unique_ptr<Collector> collector, ExportSettings settings,
                           Count count, Tell tell)
    : collector_(std::move(collector)),
      settings_(std::move(settings)),
      count_(std::move(count)),
      tell_(std::move(tell)),
      thread_([this] { Work(); }) {}

SpanExporter::~SpanExporter() {
  Close(absl::ZeroDuration());
  thread_.join();
}

void SpanExporter::Add(std::vector<Span> spans) {
  {
    const std::lock_guard lock(mutex_);
    const size_t before = waiting_.size();
    if (!is_closing_ && before + spans.size() <= settings_.most_waiting) {
      std::move(spans.begin(), spans.end(), std::back_inserter(waiting_));
      if (before == 0) came_.notify_one();
      if (waiting_.size() >= settings_.most_of_batch) filled_.notify_one();
      return;
    }
  }
  count_(SpanEnd::kDropped, static_cast<int64_t>(spans.size()));
  TellOfLoss("too many wait for it");
}

void SpanExporter::Close(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  is_closing_ = true;
  came_.notify_one();
  filled_.notify_one();
  const auto ended = [this] { return has_ended_; };
  if (ended_.wait_for(lock, absl::ToChronoNanoseconds(timeout), ended)) return;
  is_cut_ = true;
  lock.unlock();
  collector_->Stop();
}

void SpanExporter::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return is_closing_ || !waiting_.empty(); });
    filled_.wait_for(lock, absl::ToChronoNanoseconds(settings_.gather),
                     [this] { return is_closing_ || waiting_.size() >= settings_.most_of_batch; });
    if (waiting_.empty() || is_cut_) break;
    std::vector<Span> batch = TakeBatch();
    lock.unlock();
    Send(std::move(batch));
    lock.lock();
  }
  const auto left = static_cast<int64_t>(waiting_.size());
  waiting_.clear();
  if (left > 0) count_(SpanEnd::kDropped, left);
  has_ended_ = true;
  ended_.notify_all();
}

std::vector<Span> SpanExporter::TakeBatch() {
  const size_t size = std::min(waiting_.size(), settings_.most_of_batch);
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(size);
  std::vector<Span> batch(std::move_iterator(waiting_.begin()), std::move_iterator(end));
  waiting_.erase(waiting_.begin(), end);
  return batch;
}

void SpanExporter::Send(std::vector<Span> spans) {
  const auto size = static_cast<int64_t>(spans.size());
  ExportRequest request;
  ResourceSpans* const of_resource = request.add_resource_spans();
  *of_resource->mutable_resource() = settings_.resource;
  ScopeSpans* const of_scope = of_resource->add_scope_spans();
  *of_scope->mutable_scope() = settings_.scope;
  for (Span& span : spans) of_scope->add_spans()->Swap(&span);
  const absl::StatusOr<PartialSuccess> refused =
      collector_->Export(request, absl::Now() + settings_.deadline);
  if (!refused.ok()) {
    const SpanEnd end = HasNoAnswer(refused.status()) ? SpanEnd::kDropped : SpanEnd::kRefused;
    count_(end, size);
    return TellOfLoss(std::string(refused.status().message()));
  }
  // A collector may count anything.
  const int64_t lost = std::clamp<int64_t>(refused->rejected_spans(), 0, size);
  if (size > lost) count_(SpanEnd::kSent, size - lost);
  if (lost == 0) return;
  count_(SpanEnd::kRefused, lost);
  TellOfLoss(absl::StrCat("it refused ", lost, " of ", size, ": ", refused->error_message()));
}

void SpanExporter::TellOfLoss(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (last_note_ && now - *last_note_ < absl::ToChronoNanoseconds(settings_.note_interval))
      return;
    last_note_ = now;
  }
  constexpr size_t kMost = 300;
  tell_(absl::StrCat("the collector does not take spans (", why.substr(0, kMost),
                     "); simgrad_trace_spans_total counts those that are lost"));
}

}  // namespace simgrad::server::tracing
