// What a run on a GPU found, as one JSON document and one Markdown table.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
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
  std::string section, device, driver, toolkit, date, revision;
  std::vector<Row> rows;
  std::vector<std::string> failures;  // of equality and behaviour; figures that fall short are not
  std::vector<std::string> not_run;   // and why

  // Called whenever there is a row or a failure more: a run that is cut off leaves what it had.
  std::function<void(const Report&)> keep;

  void Add(std::string name, double value, std::string unit) {
    Push({std::move(name), value, std::move(unit), "", true});
  }
  void Fail(std::string failure) {
    failures.push_back(std::move(failure));
    if (keep) keep(*this);
  }
  void AddAtLeast(std::string name, double value, double least);
  void AddAtMost(std::string name, double value, std::string unit, double most);
  std::string Json() const;
  std::string Markdown() const;

 private:
  // A row takes the place of the one of its name, if there is one.
  void Push(Row row) {
    const auto old = std::find_if(rows.begin(), rows.end(),
                                  [&](const Row& other) { return other.name == row.name; });
    if (old == rows.end()) {
      rows.push_back(std::move(row));
    } else {
      *old = std::move(row);
    }
    if (keep) keep(*this);
  }
};

}  // namespace simgrad::gpu_check
