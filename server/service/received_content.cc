#include "server/service/received_content.h"

#include <openssl/evp.h>

#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/service/wire_message.h"
#include "server/validation/request_error.h"
#include "simgrad/v1/simgrad.pb.h"

namespace simgrad::server::service {
namespace {

using validation::InvalidField;
using validation::LimitExceeded;

// Throws sim::StopRequested.
std::string Sha256(const std::string& bytes, sim::WorkMeter& meter) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(),
                                                                     EVP_MD_CTX_free);
  if (hash == nullptr || EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) != 1) {
    throw std::bad_alloc();
  }
  sim::InPieces(meter, static_cast<int64_t>(bytes.size()), 1, [&](int64_t begin, int64_t end) {
    EVP_DigestUpdate(hash.get(), bytes.data() + begin, static_cast<size_t>(end - begin));
  });
  std::string digest(ReceivedContent::kDigestBytes, '\0');
  EVP_DigestFinal_ex(hash.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return digest;
}

}  // namespace

bool ReceivedContent::Take(grpc::ByteBuffer& message) {
  try {
    refused_ = Add(message);
  } catch (const std::bad_alloc&) {
    refused_ = absl::ResourceExhaustedError("the machine has no memory left for this request");
  } catch (const std::exception& error) {
    refused_ = absl::InternalError(error.what());
  }
  if (!refused_.ok()) pieces_.clear();
  return refused_.ok();
}

absl::Status ReceivedContent::Add(grpc::ByteBuffer& message) {
  wire_bytes_ += static_cast<int64_t>(message.Length());
  auto parsed = Parsed<v1::UploadRequest>(&message);
  if (!parsed.ok()) return parsed.status();
  const bool is_first = messages_++ == 0;
  if (messages_ > kMostMessages) {
    return LimitExceeded("data", absl::StrCat("content comes in at most ", kMostMessages,
                                              " messages; send larger pieces"));
  }
  if (is_first) {
    digest_ = parsed->sha256();
    size_ = parsed->size();
    if (digest_.size() != kDigestBytes) {
      return InvalidField("sha256",
                          absl::StrCat(digest_.size(), " bytes, but a SHA-256 has ", kDigestBytes));
    }
    if (size_ <= 0) {
      return InvalidField(
          "size", absl::StrCat("must be the bytes of the content, at least 1, not ", size_));
    }
    if (size_ > most_bytes_) {
      return LimitExceeded("size", absl::StrCat(size_, " bytes are above this server's limit of ",
                                                most_bytes_, " (Limits.max_upload_bytes)"));
    }
  } else if (!parsed->sha256().empty() || parsed->size() != 0) {
    return InvalidField(parsed->size() != 0 ? "size" : "sha256",
                        "stands in the first message of an upload, and in no other");
  }
  std::string& data = *parsed->mutable_data();
  if (data.empty() && !is_first) return InvalidField("data", "this message brings no bytes");
  bytes_ += static_cast<int64_t>(data.size());
  if (bytes_ > size_) {
    return InvalidField("data",
                        absl::StrCat("at least ", bytes_, " bytes came, but `size` says ", size_));
  }
  if (!data.empty()) pieces_.push_back(std::move(data));
  return absl::OkStatus();
}

absl::Status ReceivedContent::Check() const {
  if (!refused_.ok()) return refused_;
  if (messages_ == 0) {
    return InvalidField("request", "an upload has at least one message; this one had none");
  }
  if (bytes_ < size_) {
    return InvalidField("size", absl::StrCat("says ", size_, " bytes, but ", bytes_, " came"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReceivedContent::Join(const sim::WorkMeter::StopCallback& stop) {
  std::string whole;
  std::string found;
  const absl::Status ended = sim::UntilStopped([&] {
    sim::WorkMeter meter(stop);
    whole = Joined(meter);
    found = Sha256(whole, meter);
  });
  if (!ended.ok()) return ended;
  if (found == digest_) return whole;
  return InvalidField("sha256",
                      absl::StrCat("is ", absl::BytesToHexString(digest_), ", but the content has ",
                                   absl::BytesToHexString(found)));
}

std::string ReceivedContent::Joined(sim::WorkMeter& meter) {
  std::string whole;
  if (pieces_.size() == 1) {
    whole = std::move(pieces_.front());
    whole.shrink_to_fit();  // a large message may leave room at its end
  } else {
    whole.reserve(static_cast<size_t>(bytes_));
    for (std::string& piece : pieces_) {
      meter.Add(static_cast<int64_t>(piece.size()) / sim::kBytesPerOperation);
      whole += piece;
      std::string().swap(piece);  // no two of each piece at once
    }
  }
  pieces_.clear();
  return whole;
}

}  // namespace simgrad::server::service
