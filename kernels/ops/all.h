// The contracts of all ops, for who declares or forwards each of ops.inc.
#pragma once

#include "kernels/ops/adamw.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"
#include "kernels/ops/muon.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/router.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/swiglu.h"
