// Reads the JSON of tests/data: objects, arrays, strings, numbers, booleans.
//
// Numbers that must be exact are hexadecimal floats in strings; Json::Hex reads them.
#pragma once

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace simgrad::tests {

struct Json {
  std::string text;  // of a string, a number or a word
  std::vector<Json> items;
  std::map<std::string, Json> fields;

  const Json& operator[](const std::string& name) const { return fields.at(name); }
  bool Has(const std::string& name) const { return fields.count(name) != 0; }
  bool IsTrue() const { return text == "true"; }
  double Number() const { return std::strtod(text.c_str(), nullptr); }
  double Hex() const { return Number(); }  // strtod reads both
  std::vector<double> Numbers() const {
    std::vector<double> numbers;
    for (const Json& item : items) numbers.push_back(item.Number());
    return numbers;
  }
};

class JsonReader {
 public:
  explicit JsonReader(std::string text) : text_(std::move(text)) {}

  Json Read() {
    Json value;
    const char first = Peek();
    if (first == '{') {
      ReadList('}', [&] {
        std::string name = ReadString();
        Expect(':');
        value.fields[name] = Read();
      });
    } else if (first == '[') {
      ReadList(']', [&] { value.items.push_back(Read()); });
    } else if (first == '"') {
      value.text = ReadString();
    } else {
      while (at_ < text_.size() &&
             std::string_view(",]} \n\t\r").find(text_[at_]) == std::string_view::npos) {
        value.text += text_[at_++];
      }
    }
    return value;
  }

 private:
  char Peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void Expect(char) {
    Peek();
    ++at_;
  }
  std::string ReadString() {
    Expect('"');
    std::string text;
    while (at_ < text_.size() && text_[at_] != '"') text += text_[at_++];
    ++at_;
    return text;
  }
  template <class ReadItem>
  void ReadList(char close, const ReadItem& read_item) {
    ++at_;
    while (Peek() != close && Peek() != '\0') {
      read_item();
      if (Peek() == ',') ++at_;
    }
    ++at_;
  }

  std::string text_;
  size_t at_ = 0;
};

inline Json ReadJsonFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return JsonReader(text.str()).Read();
}

}  // namespace simgrad::tests
