#include "server/service/references.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/service/received_content.h"
#include "server/validation/request_error.h"
#include "server/validation/tensor_check.h"
#include "server/validation/wire_check.h"
#include "sim/program/field_error.h"

namespace simgrad::server::service {
namespace {

using validation::InvalidField;
using NamedTensors = google::protobuf::RepeatedPtrField<v1::NamedTensor>;

bool Has(const v1::World& world) { return world.source_case() == v1::World::kProgramRef; }
bool Has(const v1::Tensor& tensor) { return tensor.content_case() == v1::Tensor::kRef; }
bool Has(const NamedTensors& tensors) {
  for (const v1::NamedTensor& named : tensors) {
    if (Has(named.tensor())) return true;
  }
  return false;
}
bool Has(const v1::RolloutSpec& spec) {
  return Has(spec.world()) || Has(spec.initial()) || Has(spec.params()) || Has(spec.controls()) ||
         Has(spec.data()) || Has(spec.path().forced().decisions());
}
bool Has(const google::protobuf::RepeatedPtrField<v1::Cotangent>& cotangents) {
  for (const v1::Cotangent& cotangent : cotangents) {
    if (Has(cotangent.final_state()) || Has(cotangent.trajectory())) return true;
  }
  return false;
}

bool Has(const v1::Variant& variant) {
  return Has(variant.world()) || Has(variant.initial()) || Has(variant.params()) ||
         Has(variant.controls()) || Has(variant.data());
}

class Resolver {
 public:
  Resolver(const ReferenceOptions& options, size_t request_bytes, Resolved& resolved)
      : options_(options),
        room_(options.max_request_bytes - static_cast<int64_t>(request_bytes)),
        resolved_(resolved) {}

  absl::Status Spec(v1::RolloutSpec& spec) {
    const absl::Status status = WorldAndInputs(spec, "spec");
    if (!status.ok() || !Has(spec.path().forced().decisions())) return status;
    return Tensor(*spec.mutable_path()->mutable_forced()->mutable_decisions(),
                  "spec.path.forced.decisions");
  }

  absl::Status Cotangents(google::protobuf::RepeatedPtrField<v1::Cotangent>& cotangents) {
    for (int i = 0; i < cotangents.size(); ++i) {
      const std::string field = absl::StrCat("cotangents[", i, "]");
      absl::Status status = Tensors(*cotangents[i].mutable_final_state(), field + ".final_state");
      if (status.ok()) {
        status = Tensors(*cotangents[i].mutable_trajectory(), field + ".trajectory");
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // `work`: a spec or a variant.
  template <class Work>
  absl::Status WorldAndInputs(Work& work, const std::string& field) {
    absl::Status status = absl::OkStatus();
    if (Has(work.world())) status = World(work.world(), field + ".world");
    if (status.ok()) status = Tensors(*work.mutable_initial(), field + ".initial");
    if (status.ok()) status = Tensors(*work.mutable_params(), field + ".params");
    if (status.ok()) status = Tensors(*work.mutable_controls(), field + ".controls");
    if (status.ok()) status = Tensors(*work.mutable_data(), field + ".data");
    return status;
  }

  absl::Status World(const v1::World& world, const std::string& field) {
    const std::string& digest = world.program_ref();
    const auto content = Find(digest, field + ".program_ref");
    if (!content.ok()) return content.status();
    if (resolved_.worlds.count(digest) > 0) return absl::OkStatus();
    std::shared_ptr<const conversion::CachedWorld> known = options_.cache->OfContent(digest);
    if (known == nullptr) {
      auto made = Made(**content, field);
      if (!made.ok()) return made.status();
      known = *std::move(made);
      options_.cache->SetOfContent(digest, known);
    }
    resolved_.worlds.emplace(digest, std::move(known));
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::shared_ptr<const conversion::CachedWorld>> Made(const std::string& bytes,
                                                                      const std::string& field) {
    if (absl::Status taken = Take(bytes.size(), field + ".program_ref"); !taken.ok()) return taken;
    google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
    const absl::Status wire = validation::CheckWire<v1::Program>(stream);
    if (!wire.ok()) return OfProgram(wire, bytes.size(), field);
    v1::World world;
    v1::Program& program = *world.mutable_program();
    if (!program.ParseFromString(bytes)) return NoProgram(bytes.size(), field, "");
    // Another message may read as one, with its fields unset.
    if (program.inputs_size() == 0) {
      return NoProgram(bytes.size(), field, ": read as one they have no inputs");
    }
    const auto start = std::chrono::steady_clock::now();
    auto made = options_.cache->World(world, field, options_.compile);
    resolved_.compile_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return made;
  }

  absl::Status Tensors(NamedTensors& tensors, const std::string& field) {
    for (int i = 0; i < tensors.size(); ++i) {
      if (!Has(tensors[i].tensor())) continue;
      const absl::Status status =
          Tensor(*tensors[i].mutable_tensor(), absl::StrCat(field, "[", i, "].tensor"));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Tensor(v1::Tensor& tensor, const std::string& field) {
    const auto content = Find(tensor.ref(), field + ".ref");
    if (!content.ok()) return content.status();
    if (absl::Status taken = Take((*content)->size(), field + ".ref"); !taken.ok()) return taken;
    tensor.set_inline_(**content);
    // Here, as the caller sent no field `inline` that could be at fault.
    return validation::CheckTensor(tensor, field, "ref");
  }

  // Counts against the limit of a request, whether its bytes are copied or not.
  absl::StatusOr<std::shared_ptr<const std::string>> Find(const std::string& digest,
                                                          const std::string& field) {
    if (digest.size() != ReceivedContent::kDigestBytes) {
      return InvalidField(field, absl::StrCat(digest.size(), " bytes, but a SHA-256 has ",
                                              ReceivedContent::kDigestBytes));
    }
    auto content = options_.contents->Find(digest, options_.caller);
    if (content == nullptr) {
      return validation::WithReason(
          sim::InField(field, absl::FailedPreconditionError(
                                  "no content is kept for this caller under it on this server: it "
                                  "was never uploaded, has expired or was given up; upload it "
                                  "again, or send it inline")),
          "TENSOR_GONE");
    }
    const auto bytes = static_cast<int64_t>(content->size());
    room_ -= bytes;
    if (room_ < 0) {
      return validation::LimitExceeded(
          field, absl::StrCat("the request has ", options_.max_request_bytes - room_,
                              " bytes with the content that it names up to here; this server's "
                              "limit is ",
                              options_.max_request_bytes));
    }
    return content;
  }

  // Takes memory for a copy.
  absl::Status Take(size_t bytes, const std::string& field) const {
    if (!options_.take || options_.take(static_cast<int64_t>(bytes))) return absl::OkStatus();
    return sim::InField(field, absl::ResourceExhaustedError(absl::StrCat(
                                   "there is no memory for the ", bytes,
                                   " bytes that it names now; try later, or ask for less")));
  }

  static absl::Status NoProgram(size_t bytes, const std::string& field, const std::string& why) {
    return InvalidField(
        field + ".program_ref",
        absl::StrCat("the ", bytes, " bytes that it names are no simgrad.v1.Program", why));
  }

  // A program's fields are named as if it stood in the request.
  static absl::Status OfProgram(const absl::Status& status, size_t bytes,
                                const std::string& field) {
    const bool is_whole = sim::FieldOf(status) == "request";
    const std::string reason = validation::ReasonOf(status);
    if (!is_whole) return validation::WithReason(sim::InField(field + ".program", status), reason);
    const std::string message(status.message());
    const std::string why = message.substr(message.find(": ") + 2);
    if (reason == "INVALID_FIELD") return NoProgram(bytes, field, absl::StrCat(": ", why));
    return validation::WithReason(sim::FieldError(field + ".program_ref", why), reason);
  }

  const ReferenceOptions& options_;
  int64_t room_;
  Resolved& resolved_;
};

}  // namespace

bool HasReferences(const v1::RolloutRequest& request) { return Has(request.spec()); }
bool HasReferences(const v1::GradientRequest& request) {
  return Has(request.spec()) || Has(request.cotangents());
}
bool HasReferences(const v1::VjpRequest& request) { return Has(request.cotangents()); }
bool HasReferences(const v1::CompareRequest& request) {
  return HasReferences(request.rollout()) || HasReferences(request.gradient()) ||
         std::any_of(request.variants().begin(), request.variants().end(),
                     [](const v1::Variant& variant) { return Has(variant); });
}
bool HasReferences(const v1::DescribeProgramRequest& request) { return Has(request.world()); }

absl::Status Resolve(const ReferenceOptions& options, v1::RolloutRequest& request,
                     Resolved& resolved) {
  if (!HasReferences(request)) return absl::OkStatus();
  return Resolver(options, request.ByteSizeLong(), resolved).Spec(*request.mutable_spec());
}

absl::Status Resolve(const ReferenceOptions& options, v1::GradientRequest& request,
                     Resolved& resolved) {
  if (!HasReferences(request)) return absl::OkStatus();
  Resolver resolver(options, request.ByteSizeLong(), resolved);
  const absl::Status status = resolver.Spec(*request.mutable_spec());
  return status.ok() ? resolver.Cotangents(*request.mutable_cotangents()) : status;
}

absl::Status Resolve(const ReferenceOptions& options, v1::VjpRequest& request, Resolved& resolved) {
  if (!HasReferences(request)) return absl::OkStatus();
  return Resolver(options, request.ByteSizeLong(), resolved)
      .Cotangents(*request.mutable_cotangents());
}

absl::Status Resolve(const ReferenceOptions& options, v1::CompareRequest& request,
                     Resolved& resolved) {
  if (!HasReferences(request)) return absl::OkStatus();
  Resolver resolver(options, request.ByteSizeLong(), resolved);
  absl::Status status = absl::OkStatus();
  if (request.has_rollout()) status = resolver.Spec(*request.mutable_rollout()->mutable_spec());
  if (request.has_gradient()) {
    status = resolver.Spec(*request.mutable_gradient()->mutable_spec());
    if (status.ok())
      status = resolver.Cotangents(*request.mutable_gradient()->mutable_cotangents());
  }
  for (int i = 0; i < request.variants_size() && status.ok(); ++i) {
    status =
        resolver.WorldAndInputs(*request.mutable_variants(i), absl::StrCat("variants[", i, "]"));
  }
  return status;
}

absl::Status Resolve(const ReferenceOptions& options, v1::DescribeProgramRequest& request,
                     Resolved& resolved) {
  if (!HasReferences(request)) return absl::OkStatus();
  return Resolver(options, request.ByteSizeLong(), resolved).World(request.world(), "world");
}

}  // namespace simgrad::server::service
