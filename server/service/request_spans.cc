#include "server/service/request_spans.h"

#include <grpcpp/support/status.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "precision/hash.h"
#include "server/metrics/methods.h"
#include "server/service/error_status.h"
#include "server/tracing/trace_context.h"

namespace simgrad::server::service {
namespace {

using tracing::Span;

// Flags of a span: the caller's, that the next bit is known, and that the parent is of another process.
constexpr uint32_t kSampled = 0x1, kKnowsRemote = 0x100, kIsRemote = 0x200;

// Bytes outside ASCII become the characters that the log line has for them. Protobuf refuses a message
// with a text that is no UTF-8.
std::string Utf8Of(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

void AddText(const char* key, std::string_view text, Span& span) {
  tracing::Attribute* const attribute = span.add_attributes();
  attribute->set_key(key);
  attribute->mutable_value()->set_text(Utf8Of(text));
}

void AddInteger(const char* key, int64_t integer, Span& span) {
  tracing::Attribute* const attribute = span.add_attributes();
  attribute->set_key(key);
  attribute->mutable_value()->set_integer(integer);
}

void AddReal(const char* key, double real, Span& span) {
  tracing::Attribute* const attribute = span.add_attributes();
  attribute->set_key(key);
  attribute->mutable_value()->set_real(real);
}

// Other codes of ours are no failure of a server, by the convention for gRPC.
bool IsFailureOfServer(grpc::StatusCode code) {
  using grpc::StatusCode;
  return code == StatusCode::DEADLINE_EXCEEDED || code == StatusCode::UNIMPLEMENTED ||
         code == StatusCode::INTERNAL || code == StatusCode::UNAVAILABLE;
}

std::string BytesOf(uint64_t id) {
  return absl::HexStringToBytes(absl::StrCat(absl::Hex(id, absl::kZeroPad16)));
}

Span RequestSpan(const RequestRecord& record, const tracing::TraceContext& context) {
  Span span;
  span.set_trace_id(absl::HexStringToBytes(context.trace_id));
  span.set_span_id(absl::HexStringToBytes(record.request_id));
  span.set_parent_span_id(absl::HexStringToBytes(context.parent_span_id));
  span.set_flags(kSampled | kKnowsRemote | kIsRemote);
  span.set_name(absl::StrCat(metrics::kGrpcService, "/", record.method));
  span.set_kind(Span::KIND_SERVER);
  const absl::Time end = record.began.wall + absl::Seconds(record.total_seconds);
  span.set_start_time_unix_nano(static_cast<uint64_t>(absl::ToUnixNanos(record.began.wall)));
  span.set_end_time_unix_nano(static_cast<uint64_t>(absl::ToUnixNanos(end)));
  const grpc::StatusCode code = CodeWithLabel(record.outcome);
  AddText("rpc.system", "grpc", span);
  AddText("rpc.service", metrics::kGrpcService, span);
  AddText("rpc.method", record.method, span);
  AddInteger("rpc.grpc.status_code", code, span);
  AddText("simgrad.request_id", record.request_id, span);
  AddText("simgrad.caller", record.caller.substr(0, kMostOfText), span);
  if (!record.world.empty()) {
    AddText("simgrad.world", record.world, span);
    AddInteger("simgrad.instances", record.instances, span);
    AddInteger("simgrad.steps", record.steps, span);
    if (record.runs > 1) AddInteger("simgrad.runs", record.runs, span);
  }
  if (IsFailureOfServer(code)) {
    span.mutable_status()->set_code(tracing::SpanStatus::CODE_ERROR);
    span.mutable_status()->set_message(Utf8Of(record.message.substr(0, kMostOfText)));
  }
  return span;
}

// `parent`: the span of the request, which the stage lies within.
Span StageSpan(const RequestRecord& record, size_t stage, uint64_t request_id, const Span& parent) {
  Span span;
  span.set_trace_id(parent.trace_id());
  span.set_span_id(BytesOf(precision::SplitMix64(request_id + stage)));
  span.set_parent_span_id(parent.span_id());
  span.set_flags(kSampled | kKnowsRemote);
  span.set_name(kStageNames[stage]);
  span.set_kind(Span::KIND_INTERNAL);
  const auto within = [&](SteadyTime time) {
    const auto nanos = static_cast<uint64_t>(absl::ToUnixNanos(record.began.WallAt(time)));
    return std::clamp(nanos, parent.start_time_unix_nano(), parent.end_time_unix_nano());
  };
  span.set_start_time_unix_nano(within(record.extents[stage]->first));
  span.set_end_time_unix_nano(within(record.extents[stage]->last));
  AddReal("simgrad.stage_seconds", *record.seconds[stage], span);
  return span;
}

}  // namespace

std::vector<Span> SpansOf(const RequestRecord& record) {
  const auto context = tracing::TraceContextOf(record.trace_parent);
  uint64_t id = 0;
  if (!context || !context->is_sampled || !absl::SimpleHexAtoi(record.request_id, &id)) return {};
  std::vector<Span> spans = {RequestSpan(record, *context)};
  for (size_t stage = 0; stage < record.extents.size(); ++stage) {
    if (record.extents[stage]) spans.push_back(StageSpan(record, stage, id, spans.front()));
  }
  return spans;
}

}  // namespace simgrad::server::service
