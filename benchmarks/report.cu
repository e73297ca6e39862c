#include <cstdarg>

#include "report.h"

namespace specfast::bench {
namespace {

std::string format(const char* pattern, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof(text), pattern, arguments);
  va_end(arguments);
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += format("\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

class JsonObject {
 public:
  void add(const char* key, const std::string& value) { field(key, quoted(value)); }
  void add(const char* key, int64_t value) { field(key, std::to_string(value)); }
  void add(const char* key, double value) { field(key, format("%.6g", value)); }
  std::string text() const { return "{" + fields_ + "}"; }

 private:
  void field(const char* key, const std::string& value) {
    if (!fields_.empty()) fields_ += ", ";
    fields_ += quoted(key) + ": " + value;
  }
  std::string fields_;
};

// A number or a dash where the column does not apply.
std::string cell(const char* pattern, double value) {
  return value > 0 ? format(pattern, value) : "-";
}

}  // namespace

std::string describe(const Point& point) {
  std::string text = point.op;
  if (!point.variant.empty()) text += " (" + point.variant + ")";
  if (point.batch > 0) text += " B=" + std::to_string(point.batch);
  if (point.nodes > 0) text += " n=" + std::to_string(point.nodes);
  return text;
}

std::string json_line(const Row& row, const Floors& floors, const Environment& environment) {
  JsonObject out;
  out.add("op", row.point.op);
  out.add("variant", row.point.variant);
  out.add("batch", static_cast<int64_t>(row.point.batch));
  out.add("nodes", static_cast<int64_t>(row.point.nodes));
  out.add("vocab", row.point.vocab);
  out.add("dtype", row.point.dtype);
  if (!row.error.empty()) {
    out.add("error", row.error);
  } else {
    out.add("us", row.timing.median);
    out.add("us_p10", row.timing.p10);
    out.add("us_p90", row.timing.p90);
    out.add("floor_us", row.floor_us(floors));
    out.add("aim_us", row.point.aim_us);
    out.add("rows_mean", row.traffic.rows_mean);
    out.add("rows_max", row.traffic.rows_max);
    out.add("bytes", row.traffic.bytes);
    out.add("gbps", row.gbps());
    out.add("copy_gbps", floors.copy_gbps);
    out.add("launches", static_cast<int64_t>(row.launches_per_call));
    out.add("sets", static_cast<int64_t>(row.sets));
    out.add("calls_per_graph", static_cast<int64_t>(row.timing.calls_per_graph));
    out.add("replays", static_cast<int64_t>(row.timing.replays));
  }
  out.add("card", environment.card);
  out.add("driver", environment.driver);
  out.add("cuda", environment.cuda);
  out.add("commit", environment.commit);
  out.add("command", environment.command);
  out.add("date", environment.date);
  return out.text();
}

void print_heading(std::FILE* out, const Environment& environment) {
  std::fprintf(out, "%s, driver %s, CUDA %s, commit %s, %s\n", environment.card.c_str(),
               environment.driver.c_str(), environment.cuda.c_str(), environment.commit.c_str(),
               environment.date.c_str());
  std::fprintf(out, "%-22s %-26s %4s %4s %9s %8s %8s %8s %6s %5s %2s %7s %6s\n", "op", "variant",
               "B", "n", "rows/max", "us", "p10", "p90", "GB/s", "%copy", "L", "floor", "aim");
}

void print_row(std::FILE* out, const Row& row, const Floors& floors) {
  const Point& point = row.point;
  std::fprintf(out, "%-22s %-26s %4s %4s ", point.op.c_str(), point.variant.c_str(),
               cell("%.0f", point.batch).c_str(), cell("%.0f", point.nodes).c_str());
  if (!row.error.empty()) {
    std::fprintf(out, "FAILED: %s\n", row.error.c_str());
    return;
  }
  std::string visited = row.traffic.rows_mean > 0
                            ? format("%.2f/%.0f", row.traffic.rows_mean, row.traffic.rows_max)
                            : "-";
  double percent = floors.copy_gbps > 0 ? 100 * row.gbps() / floors.copy_gbps : 0;
  std::fprintf(out, "%9s %8s %8s %8s %6s %5s %2d %7s %6s\n", visited.c_str(),
               cell("%.2f", row.timing.median).c_str(), cell("%.2f", row.timing.p10).c_str(),
               cell("%.2f", row.timing.p90).c_str(), cell("%.0f", row.gbps()).c_str(),
               cell("%.0f", percent).c_str(), row.launches_per_call,
               cell("%.2f", row.floor_us(floors)).c_str(), cell("%.0f", point.aim_us).c_str());
  std::fflush(out);
}

}  // namespace specfast::bench
