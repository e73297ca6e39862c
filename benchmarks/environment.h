#pragma once

#include <string>

namespace specfast::bench {

// What every line of a result file repeats, so that a line can be read alone.
struct Environment {
  std::string card;
  std::string driver;
  std::string cuda;
  std::string commit;
  std::string command;
  std::string date;
};

// Card, driver and time of this run on device 0.
Environment this_environment(const std::string& commit, const std::string& command);

}  // namespace specfast::bench
