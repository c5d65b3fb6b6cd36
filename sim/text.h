// Building C++ text: concatenation and indented lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace simgrad::sim {

inline void AppendPart(std::string& to, std::string_view part) { to.append(part); }
template <class T>
requires std::is_integral_v<T>
void AppendPart(std::string& to, T part) { to.append(std::to_string(part)); }

template <class... T>
std::string Cat(const T&... parts) {
  std::string text;
  (AppendPart(text, parts), ...);
  return text;
}

class TextWriter {
 public:
  explicit TextWriter(int depth = 0) : depth_(depth) {}
  void Line(std::string_view line) {
    text_.append(static_cast<size_t>(2 * depth_), ' ');
    text_.append(line);
    text_ += '\n';
  }
  void Open(std::string_view head) {
    Line(head.empty() ? "{" : Cat(head, " {"));
    ++depth_;
  }
  void Close(std::string_view tail = "}") {
    --depth_;
    Line(tail);
  }
  void Raw(std::string_view text) { text_.append(text); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  int depth_;
};

}  // namespace simgrad::sim
