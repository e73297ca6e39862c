#pragma once

#include <cstdio>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// A test program in one header:
//
//   TEST(argmax_takes_the_lowest_id) { CHECK_EQ(argmax(row), 3); }
//   PLANTED_FAULT(missing_barrier) { ThreadTeam::run(2, 4, body, /*dropped_barrier=*/1); }
//
// A check that fails ends its test. It throws, so it belongs to the test's own thread, not into
// the body of a team. A planted fault is left out of ordinary runs; under ThreadSanitizer ctest
// runs each in a process of its own and demands a report of a data race.
namespace specfast::testing {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
inline std::vector<Test>& planted_faults() {
  static std::vector<Test> all;
  return all;
}
inline bool add(std::vector<Test>& list, const char* name, void (*run)()) {
  list.push_back({name, run});
  return true;
}

template <class T>
std::string describe(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}
template <class T>
std::string describe(const std::vector<T>& values) {
  std::string text = "{";
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + describe(static_cast<T>(values[i]));
  }
  return text + "}";
}

template <class A, class B>
void check_equal(const A& actual, const B& expected, const char* text, const char* file, int line) {
  if (actual == expected) return;
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + text + ": expected " +
                describe(expected) + ", got " + describe(actual));
}

// `program` runs all tests, `program WORD` those with WORD in their name, and `program --planted
// NAME` one planted fault.
inline int run_tests(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--planted") == 0) {
    for (const Test& fault : planted_faults()) {
      if (std::strcmp(fault.name, argv[2]) == 0) return fault.run(), 0;
    }
    std::printf("no planted fault is called %s\n", argv[2]);
    return 1;
  }
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Test& test : tests()) std::printf("%s\n", test.name);
    return 0;
  }
  const char* word = argc > 1 ? argv[1] : "";
  int passed = 0;
  int failed = 0;
  for (const Test& test : tests()) {
    if (std::strstr(test.name, word) == nullptr) continue;
    try {
      test.run();
      ++passed;
    } catch (const std::exception& error) {
      std::printf("FAILED %s\n  %s\n", test.name, error.what());
      ++failed;
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace specfast::testing

#define SPECFAST_TEST_IN(list, name)                                                               \
  static void name();                                                                              \
  static const bool name##_added = specfast::testing::add(specfast::testing::list(), #name, name); \
  static void name()
#define TEST(name) SPECFAST_TEST_IN(tests, name)
#define PLANTED_FAULT(name) SPECFAST_TEST_IN(planted_faults, name)

#define CHECK(condition) \
  specfast::testing::check_equal(bool(condition), true, #condition, __FILE__, __LINE__)
#define CHECK_EQ(actual, expected) \
  specfast::testing::check_equal(actual, expected, #actual, __FILE__, __LINE__)
