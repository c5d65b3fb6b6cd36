#include "server/validation/wire_check.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/validation/request_error.h"

namespace simgrad::server::validation {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using WireType = WireFormatLite::WireType;

// The parser's own limit; what is deeper it refuses.
constexpr int kMostDepth = 100;
// The bytes of an allocation, and of an entry in a list or a map.
constexpr int64_t kAllocationBytes = 16;
constexpr int64_t kStringBytes = 32 + kAllocationBytes;
constexpr int64_t kMapEntryBytes = 64;

}  // namespace

struct FieldFacts {
  const FieldDescriptor* field = nullptr;  // null: no field has this number
  WireType wire = WireFormatLite::WIRETYPE_VARINT;
  const WireFacts* message = nullptr;  // where it is one
  int64_t memory_bytes = 0;            // of one element, without the content of a string
  bool varint_list = false;
  int list = -1;      // which of the message's lists of messages it is
  uint64_t once = 0;  // its bit, where one is kept; members of a oneof share theirs
};

struct WireFacts {
  const Descriptor* type = nullptr;
  std::vector<FieldFacts> fields;  // by number
  int lists = 0;
  bool map_entry = false;
};

namespace {

class FactsBuilder {
 public:
  const WireFacts* Of(const Descriptor* type) {
    auto [place, inserted] = made_.try_emplace(type, nullptr);
    if (!inserted) return place->second;
    auto* facts = new WireFacts;  // never freed: descriptors are not either
    place->second = facts;
    facts->type = type;
    facts->map_entry = type->options().map_entry();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      const auto number = static_cast<size_t>(field->number());
      facts->fields.resize(std::max(facts->fields.size(), number + 1));
      facts->fields[number] = FieldOf(field, *facts);
    }
    return facts;
  }

 private:
  FieldFacts FieldOf(const FieldDescriptor* field, WireFacts& owner) {
    FieldFacts facts;
    facts.field = field;
    facts.wire =
        WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field->type()));
    facts.varint_list = field->is_packable() && facts.wire == WireFormatLite::WIRETYPE_VARINT;
    facts.memory_bytes = MemoryOf(field);
    if (field->message_type() != nullptr) facts.message = Of(field->message_type());
    if (field->is_repeated()) {
      if (facts.message != nullptr) facts.list = owner.lists++;
    } else if (const auto* oneof = field->real_containing_oneof(); oneof != nullptr) {
      facts.once = uint64_t{1} << (63 - oneof->index());
    } else {
      facts.once = uint64_t{1} << field->index();
    }
    return facts;
  }

  static int64_t MemoryOf(const FieldDescriptor* field) {
    const int64_t in_list = field->is_repeated() ? static_cast<int64_t>(sizeof(void*)) : 0;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        if (field->is_map()) return kMapEntryBytes;  // key and value count for themselves
        const auto* prototype = google::protobuf::MessageFactory::generated_factory()->GetPrototype(
            field->message_type());
        return static_cast<int64_t>(prototype->SpaceUsedLong()) + kAllocationBytes + in_list;
      }
      case FieldDescriptor::CPPTYPE_STRING:
        return kStringBytes + in_list;
      case FieldDescriptor::CPPTYPE_BOOL:
        return 1;
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_UINT32:
      case FieldDescriptor::CPPTYPE_ENUM:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return 4;
      default:
        return 8;
    }
  }

  std::map<const Descriptor*, const WireFacts*> made_;
};

// One message that is open; its path is read from the outermost inwards.
struct Frame {
  const WireFacts* facts;
  const Frame* outer = nullptr;
  const FieldFacts* inside = nullptr;  // the field of `outer` that it is
  int index = 0;                       // in a list
  uint64_t seen = 0;
  absl::InlinedVector<int, 8> lists = {};  // messages so far in each list
  std::string key = {};                    // of an entry of a map
  std::set<std::string> keys = {};         // of the maps in it
};

// The key as a path shows it: what is not printable ASCII is escaped, since an error is UTF-8.
std::string Readable(const std::string& key) {
  const bool is_plain = std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
  return is_plain ? key : absl::CHexEscape(key);
}

std::string PathOf(const Frame& frame) {
  if (frame.outer == nullptr) return "";
  std::string path = PathOf(*frame.outer);
  const FieldDescriptor* field = frame.inside->field;
  // The value of an entry is the entry itself to the reader of a path.
  if (frame.outer->facts->map_entry) return path;
  absl::StrAppend(&path, path.empty() ? "" : ".", field->name());
  if (field->is_map() && !frame.key.empty())
    return absl::StrCat(path, "[", Readable(frame.key), "]");
  if (field->is_repeated()) absl::StrAppend(&path, "[", frame.index, "]");
  return path;
}

std::string FieldPath(const Frame& frame) {
  const std::string path = PathOf(frame);
  return path.empty() ? "request" : path;
}

class Walk {
 public:
  explicit Walk(google::protobuf::io::ZeroCopyInputStream& bytes) : in_(&bytes) {}

  absl::Status Run(const WireFacts& facts) {
    Frame frame{&facts};
    Message(frame, 0);
    return status_;
  }

 private:
  // False ends the walk: something is refused, or the bytes are no message.
  bool Message(Frame& frame, int depth) {
    if (depth > kMostDepth) {
      return Refuse(LimitExceeded(
          FieldPath(frame),
          absl::StrCat("messages lie in one another more than ", kMostDepth, " deep here")));
    }
    frame.lists.resize(static_cast<size_t>(frame.facts->lists));
    for (uint32_t tag; (tag = in_.ReadTag()) != 0;) {
      if (!Field(frame, tag, depth)) return false;
    }
    return in_.ConsumedEntireMessage();
  }

  bool Field(Frame& frame, uint32_t tag, int depth) {
    const auto number = static_cast<size_t>(WireFormatLite::GetTagFieldNumber(tag));
    const WireType wire = WireFormatLite::GetTagWireType(tag);
    if (number >= frame.facts->fields.size() || frame.facts->fields[number].field == nullptr) {
      return Unknown(frame, tag);
    }
    const FieldFacts& facts = frame.facts->fields[number];
    const bool packed = facts.field->is_packable() && wire != facts.wire &&
                        wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (wire != facts.wire && !packed) return WrongType(frame, facts);
    if ((frame.seen & facts.once) != 0) return Twice(frame, facts);
    frame.seen |= facts.once;
    if (facts.message != nullptr) return Inner(frame, facts, depth);
    if (packed) return Packed(frame, facts);
    if (!Grows(frame, facts.memory_bytes)) return false;
    switch (wire) {
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        return Bytes(frame, facts);
      case WireFormatLite::WIRETYPE_FIXED64:
        return in_.Skip(8);
      case WireFormatLite::WIRETYPE_FIXED32:
        return in_.Skip(4);
      default: {
        uint64_t value;
        return in_.ReadVarint64(&value);
      }
    }
  }

  bool Inner(Frame& frame, const FieldFacts& facts, int depth) {
    Frame inner{facts.message, &frame, &facts};
    if (facts.list >= 0) inner.index = frame.lists[static_cast<size_t>(facts.list)]++;
    if (!Grows(inner, facts.memory_bytes)) return false;
    int length;
    if (!in_.ReadVarintSizeAsInt(&length)) return false;
    const CodedInputStream::Limit limit = in_.PushLimit(length);
    if (!Message(inner, depth + 1) || in_.BytesUntilLimit() != 0) return false;
    in_.PopLimit(limit);
    if (!facts.field->is_map()) return true;
    if (!frame.keys.insert(inner.key).second) {
      return Refuse(InvalidField(PathOf(inner), "stands twice in the map; send it once"));
    }
    if (frame.keys.size() <= kMostKeys) return true;
    return Refuse(
        LimitExceeded(PathOf(inner), absl::StrCat("a map has at most ", kMostKeys, " keys")));
  }

  // A string or bytes. Text is read; paths name the key of a map.
  bool Bytes(Frame& frame, const FieldFacts& facts) {
    int length;
    if (!in_.ReadVarintSizeAsInt(&length)) return false;
    if (facts.field->type() != FieldDescriptor::TYPE_STRING) return in_.Skip(length);
    const bool is_key = frame.facts->map_entry && facts.field->number() == 1;
    std::string& text = is_key ? frame.key : text_;
    if (!in_.ReadString(&text, length)) return false;
    if (google::protobuf::internal::IsStructurallyValidUTF8(text.data(), length)) return true;
    const std::string path = PathOf(frame);
    const std::string field =
        is_key ? path : absl::StrCat(path, path.empty() ? "" : ".", facts.field->name());
    return Refuse(InvalidField(field, "is no text in UTF-8"));
  }

  bool Packed(Frame& frame, const FieldFacts& facts) {
    int length;
    if (!in_.ReadVarintSizeAsInt(&length)) return false;
    if (!facts.varint_list) return in_.Skip(length);
    int64_t elements = 0;
    for (int left = length; left > 0;) {
      const void* data;
      int size;
      if (!in_.GetDirectBufferPointer(&data, &size)) return false;
      size = std::min(size, left);
      const auto* bytes = static_cast<const uint8_t*>(data);
      elements += std::count_if(bytes, bytes + size, [](uint8_t byte) { return byte < 0x80; });
      if (!in_.Skip(size)) return false;
      left -= size;
    }
    return Grows(frame, std::max<int64_t>(0, elements * facts.memory_bytes - length));
  }

  bool Grows(const Frame& frame, int64_t bytes) {
    growth_ += bytes;
    if (growth_ <= kMostGrowthBytes) return true;
    return Refuse(LimitExceeded(
        FieldPath(frame), absl::StrCat("up to here the request has so many small parts that they "
                                       "take more than ",
                                       kMostGrowthBytes, " bytes beside their content")));
  }

  bool Unknown(const Frame& frame, uint32_t tag) {
    if (!WireFormatLite::SkipField(&in_, tag)) return false;  // no field at all
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    const bool reserved = frame.facts->type->IsReservedNumber(number);
    return Refuse(InvalidField(
        FieldPath(frame),
        absl::StrCat(
            "has ", reserved ? "reserved" : "unknown", " field ", number, ", which ",
            frame.facts->type->full_name(),
            " of this server does not have; leave it out, or ask a server that knows it")));
  }

  bool WrongType(const Frame& frame, const FieldFacts& facts) {
    return Refuse(
        InvalidField(FieldPath(frame),
                     absl::StrCat("field ", facts.field->number(), " (", facts.field->name(),
                                  ") is sent as another type than ", facts.field->type_name())));
  }

  bool Twice(const Frame& frame, const FieldFacts& facts) {
    const auto* oneof = facts.field->real_containing_oneof();
    const std::string path = PathOf(frame);
    return Refuse(InvalidField(
        absl::StrCat(path, path.empty() ? "" : ".", facts.field->name()),
        oneof == nullptr
            ? "stands twice, and only one would count; send it once"
            : absl::StrCat("is not the only member of '", oneof->name(), "'; send one of them")));
  }

  bool Refuse(absl::Status status) {
    status_ = std::move(status);
    return false;
  }

  CodedInputStream in_;
  int64_t growth_ = 0;
  std::string text_;  // the last one
  absl::Status status_;
};

}  // namespace

const WireFacts* WireFactsOf(const Descriptor* type) { return FactsBuilder().Of(type); }

absl::Status CheckWire(const WireFacts& facts, google::protobuf::io::ZeroCopyInputStream& bytes) {
  return Walk(bytes).Run(facts);
}

}  // namespace simgrad::server::validation
