#pragma once

#include <climits>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/error.h"

namespace specfast::bench {

constexpr const char* kUsage =
    "usage: specfast_bench [--op NAME[,NAME...]] [--variant TEXT] [--batch N]\n"
    "                      [--list] [--quick] [--check-only] [--json OUT.jsonl] [--commit HASH]\n"
    "  --op          only these ops; the floor rows are always measured\n"
    "  --variant     only points whose variant contains this\n"
    "  --batch       only points of this batch size\n"
    "  --list        print the registered points and stop\n"
    "  --quick       only batches up to 8, 20 replays\n"
    "  --check-only  compare with the CPU bodies, time nothing\n"
    "  --json        write one JSON line per row\n"
    "  --commit      what to record as the commit (the binary does not ask git)\n"
    "exit codes: 0 all rows correct, 1 a kernel is wrong or failed, 2 bad option, 77 no GPU\n";

class UsageError : public Error {
 public:
  using Error::Error;
};

struct Options {
  std::vector<std::string> ops;
  std::string variant;
  int batch = 0;  // 0: all
  bool list = false;
  bool quick = false;
  bool check_only = false;
  bool help = false;
  std::string json_path;
  std::string commit = "unknown";
};

inline std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

inline int positive_number(const std::string& option, const std::string& text) {
  char* end = nullptr;
  long number = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || number < 1 || number > INT_MAX) {
    throw UsageError("option " + option + " needs a positive number, got " + text);
  }
  return static_cast<int>(number);
}

inline Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    auto value = [&]() -> std::string {
      if (i + 1 >= argc) throw UsageError("option " + name + " needs a value");
      return argv[++i];
    };
    if (name == "--op") {
      options.ops = split_at_commas(value());
    } else if (name == "--variant") {
      options.variant = value();
    } else if (name == "--batch") {
      options.batch = positive_number(name, value());
    } else if (name == "--json") {
      options.json_path = value();
    } else if (name == "--commit") {
      options.commit = value();
    } else if (name == "--list") {
      options.list = true;
    } else if (name == "--quick") {
      options.quick = true;
    } else if (name == "--check-only") {
      options.check_only = true;
    } else if (name == "--help" || name == "-h") {
      options.help = true;
    } else {
      throw UsageError("unknown option " + name);
    }
  }
  return options;
}

}  // namespace specfast::bench
