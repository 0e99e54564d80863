// SPDX-License-Identifier: Apache-2.0
//
// Pooling of image regions.
#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

xk_roi_align_task task_of(Case& c, const char* values) {
  const int64_t* shape = c.data<int64_t>("shape");  // of the images
  const int64_t* size = c.data<int64_t>("size");    // of a pooled region
  xk_roi_align_task task = {};
  task.images = shape[0];
  task.channels = shape[1];
  task.height = shape[2];
  task.width = shape[3];
  task.boxes = c.array("boxes").count / 5;
  task.output_height = size[0];
  task.output_width = size[1];
  task.spatial_scale = c.number("spatial_scale");
  task.sampling_ratio = static_cast<int32_t>(c.number("sampling_ratio"));
  task.aligned = static_cast<int32_t>(c.number("aligned"));
  task.type = type_of(c.array(values));
  task.channels_last = static_cast<int32_t>(c.number("channels_last"));
  return task;
}

const Runner forward("roi_align", [](Case& c) {
  const xk_roi_align_task task = task_of(c, "images");
  return xk_roi_align(&task, c.data<void>("images"), c.data<float>("boxes"),
                      c.data<void>("output"));
});

const Runner backward("roi_align_backward", [](Case& c) {
  const xk_roi_align_task task = task_of(c, "gradients");
  return xk_roi_align_backward(&task, c.data<void>("gradients"), c.data<float>("boxes"),
                               c.data<float>("sums"));
});

}  // namespace
}  // namespace recorded
