#include "server/service/health_service.h"

#include <google/protobuf/io/coded_stream.h>

#include <optional>
#include <utility>
#include <vector>

namespace simgrad::server::service {
namespace {

constexpr uint32_t kServiceTag = 10;  // field 1 of HealthCheckRequest, a string
constexpr char kStatusTag = 8;        // field 1 of HealthCheckResponse, a varint
constexpr uint32_t kLongestName = 200;

// The service that is asked about; nullopt if the bytes are no request.
std::optional<std::string> ServiceOf(const grpc::ByteBuffer& request) {
  std::vector<grpc::Slice> slices;
  if (request.Length() > kLongestName + 8 || !request.Dump(&slices).ok()) return std::nullopt;
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  std::string service;
  while (const uint32_t tag = stream.ReadTag()) {
    uint32_t size = 0;
    if (tag != kServiceTag || !stream.ReadVarint32(&size) || size > kLongestName ||
        !stream.ReadString(&service, static_cast<int>(size))) {
      return std::nullopt;
    }
  }
  if (!stream.ConsumedEntireMessage()) return std::nullopt;
  return service;
}

grpc::ByteBuffer ResponseOf(Serving status) {
  const char bytes[] = {kStatusTag, static_cast<char>(status)};
  const grpc::Slice slice(bytes, sizeof(bytes));
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Status NoRequest() {
  return {grpc::StatusCode::INVALID_ARGUMENT, "these bytes are no HealthCheckRequest"};
}

}  // namespace

// One call of Watch; lives until OnDone.
class HealthWatch final : public StreamEvents {
 public:
  HealthWatch(HealthService& health, std::optional<std::string> service, StreamAnswer& answer)
      : health_(health), service_(std::move(service)), answer_(answer) {
    answer_.SetEvents(this);
    std::lock_guard lock(health_.mutex_);
    if (!service_) {
      finished_ = true;
      answer_.Finish(NoRequest());
      return;
    }
    health_.watches_[*service_].insert(this);
    Tell(health_.StatusOf(*service_));
  }

  // With health_.mutex_ held, as everything that writes.
  void Tell(Serving status) {
    if (status == told_ || finished_) return;
    next_ = status;
    if (!writing_) Write();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(health_.mutex_);
    writing_ = false;
    if (!ok || left_) return End();
    if (next_ && *next_ != told_) Write();
  }
  void OnCancel() override {
    std::lock_guard lock(health_.mutex_);
    left_ = true;
    if (!writing_) End();
  }
  void OnDone() override {
    if (service_) health_.Forget(this);
    delete this;
  }

  const std::string& service() const { return *service_; }

 private:
  void Write() {
    told_ = std::exchange(next_, std::nullopt);
    writing_ = true;
    answer_.Write(ResponseOf(*told_));
  }
  void End() {
    if (!std::exchange(finished_, true)) answer_.Finish(grpc::Status::CANCELLED);
  }

  HealthService& health_;
  const std::optional<std::string> service_;
  StreamAnswer& answer_;
  std::optional<Serving> told_, next_;
  bool writing_ = false;
  bool left_ = false;
  bool finished_ = false;
};

Serving HealthService::StatusOf(const std::string& service) const {
  const auto found = status_.find(service);
  return found == status_.end() ? Serving::kServiceUnknown : found->second;
}

void HealthService::TellWatches(const std::string& service) {
  const auto watches = watches_.find(service);
  if (watches == watches_.end()) return;
  for (HealthWatch* watch : watches->second) watch->Tell(StatusOf(service));
}

void HealthService::SetServingStatus(const std::string& service, bool serving) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return;
  status_[service] = serving ? Serving::kServing : Serving::kNotServing;
  TellWatches(service);
}

void HealthService::SetServingStatus(bool serving) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return;
  for (auto& [service, status] : status_) {
    status = serving ? Serving::kServing : Serving::kNotServing;
    TellWatches(service);
  }
}

void HealthService::Shutdown() {
  SetServingStatus(false);
  std::lock_guard lock(mutex_);
  shut_down_ = true;
}

void HealthService::Check(const ServiceCall& call, UnaryAnswer& answer) {
  const std::optional<std::string> service = ServiceOf(call.request);
  Serving status = Serving::kServiceUnknown;
  if (service) {
    std::lock_guard lock(mutex_);
    status = StatusOf(*service);
  }
  if (!service) {
    answer.Finish(NoRequest(), {});
  } else if (status == Serving::kServiceUnknown) {
    answer.Finish({grpc::StatusCode::NOT_FOUND, "service name unknown"}, {});
  } else {
    answer.Finish(grpc::Status::OK, ResponseOf(status));
  }
}

void HealthService::Watch(const ServiceCall& call, StreamAnswer& answer) {
  new HealthWatch(*this, ServiceOf(call.request), answer);  // until OnDone
}

void HealthService::Forget(HealthWatch* watch) {
  std::lock_guard lock(mutex_);
  const auto watches = watches_.find(watch->service());
  watches->second.erase(watch);
  if (watches->second.empty()) watches_.erase(watches);
}

}  // namespace simgrad::server::service
