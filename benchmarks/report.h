#pragma once

#include <cstdio>
#include <string>

#include "environment.h"
#include "graph_timer.cuh"
#include "workload.h"

namespace specfast::bench {

// The limits measured in this run.
struct Floors {
  double empty_kernel_us = 0;
  double copy_gbps = 0;
};

struct Row {
  Point point;
  Traffic traffic;
  Timing timing;
  int sets = 0;
  int launches_per_call = 1;
  // Not empty: the kernel is wrong or failed, and nothing was timed.
  std::string error;

  double gbps() const { return timing.median > 0 ? traffic.bytes / timing.median * 1e-3 : 0; }
  // One empty kernel per launch, and every byte at the speed of a device copy.
  double floor_us(const Floors& floors) const {
    double moving = floors.copy_gbps > 0 ? traffic.bytes / floors.copy_gbps * 1e-3 : 0;
    return launches_per_call * floors.empty_kernel_us + moving;
  }
};

std::string describe(const Point& point);
std::string json_line(const Row& row, const Floors& floors, const Environment& environment);
// The readable table, line by line as rows are measured.
void print_heading(std::FILE* out, const Environment& environment);
void print_row(std::FILE* out, const Row& row, const Floors& floors);

}  // namespace specfast::bench
