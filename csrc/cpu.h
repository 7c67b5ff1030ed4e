// Which kernels this processor can run.
#pragma once

#include <vector>

#include "kernels.h"

namespace headrace {

// Of this build and this processor, the quickest first. Never empty: plain C++ is the last.
std::vector<const Kernels*> usable_kernels();

}  // namespace headrace
