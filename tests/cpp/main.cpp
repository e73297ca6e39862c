#include "testing.h"

int main(int argc, char** argv) { return specfast::testing::run_tests(argc, argv); }
