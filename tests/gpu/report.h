// What a run on a GPU found, as one JSON document and one Markdown table.
#pragma once

#include <string>
#include <vector>

namespace simgrad::gpu_check {

struct Row {
  std::string name;
  double value = 0.0;
  std::string unit;
  std::string demand;  // "at least 0.8"; empty: none
  bool met = true;
};

struct Report {
  std::string device, driver, toolkit, date, revision;
  std::vector<Row> rows;
  std::vector<std::string> failures;  // of equality and behaviour; figures that fall short are not

  void Add(std::string name, double value, std::string unit) {
    rows.push_back({std::move(name), value, std::move(unit), "", true});
  }
  void AddAtLeast(std::string name, double value, double least);
  void AddAtMost(std::string name, double value, std::string unit, double most);
  std::string Json() const;
  std::string Markdown() const;
};

}  // namespace simgrad::gpu_check
