#include "nvcc_names.h"
