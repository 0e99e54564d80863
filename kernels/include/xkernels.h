/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface of libxkernels.so.
 *
 * Only plain C types, no torch and no Python, so that one build serves every version of both.
 * Every function may be called from any thread, throws nothing and keeps no pointer argument.
 */
#pragma once

#include "xkernels/decode.h"
#include "xkernels/dropout.h"
#include "xkernels/embedding.h"
#include "xkernels/gelu.h"
#include "xkernels/interaction.h"
#include "xkernels/library.h"
#include "xkernels/linear_rows.h"
#include "xkernels/mailbox.h"
#include "xkernels/nms.h"
#include "xkernels/objects.h"
#include "xkernels/optimizer.h"
#include "xkernels/roi_align.h"
#include "xkernels/team.h"
#include "xkernels/weights.h"
