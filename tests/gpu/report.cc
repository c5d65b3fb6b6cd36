#include "tests/gpu/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace simgrad::gpu_check {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace

void Report::AddAtLeast(std::string name, double value, double least) {
  Push({std::move(name), value, "", absl::StrFormat("at least %g", least), value >= least});
}

void Report::AddAtMost(std::string name, double value, std::string unit, double most) {
  Push({std::move(name), value, std::move(unit), absl::StrFormat("at most %g", most),
        value <= most});
}

std::string Report::Json() const {
  std::string json = absl::StrCat(
      "{\n  \"section\": ", Quoted(section), ",\n  \"device\": ", Quoted(device),
      ",\n  \"driver\": ", Quoted(driver), ",\n  \"toolkit\": ", Quoted(toolkit),
      ",\n  \"date\": ", Quoted(date), ",\n  \"revision\": ", Quoted(revision), ",\n  \"rows\": [");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    absl::StrAppend(&json, i == 0 ? "" : ",", "\n    {\"name\": ", Quoted(row.name),
                    ", \"value\": ", absl::StrFormat("%.6g", row.value),
                    ", \"unit\": ", Quoted(row.unit), ", \"demand\": ", Quoted(row.demand),
                    ", \"met\": ", row.met ? "true" : "false", "}");
  }
  absl::StrAppend(&json, "\n  ],\n  \"failures\": [");
  for (size_t i = 0; i < failures.size(); ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ", ", Quoted(failures[i]));
  }
  absl::StrAppend(&json, "],\n  \"not_run\": [");
  for (size_t i = 0; i < not_run.size(); ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ", ", Quoted(not_run[i]));
  }
  return json + "]\n}\n";
}

std::string Report::Markdown() const {
  std::string text = absl::StrCat("**", section, "**: ", device, ", driver for CUDA ", driver,
                                  ", NVRTC ", toolkit, ", ", date, ", revision ", revision,
                                  "\n\n| what | measured | asked for |\n|---|---|---|\n");
  for (const Row& row : rows) {
    absl::StrAppend(&text, "| ", row.name, " | ", absl::StrFormat("%.4g", row.value),
                    row.unit.empty() ? "" : " ", row.unit, " | ", row.demand,
                    row.met ? "" : " (missed)", " |\n");
  }
  for (const std::string& failure : failures)
    absl::StrAppend(&text, "\n**Failed:** ", failure, "\n");
  for (const std::string& what : not_run) absl::StrAppend(&text, "\n- not run: ", what, "\n");
  return text;
}

}  // namespace simgrad::gpu_check
