// SPDX-License-Identifier: Apache-2.0
//
// The mailbox's functions as built-in functions of Python, which make no object but the result.
#include <stddef.h>

#include "xkernels/mailbox.h"

namespace {

using Object = void*;

// PyMethodDef and its calling conventions, which the stable ABI fixes.
union Function {
  using One = Object(Object self, Object argument);
  using Many = Object(Object self, const Object* arguments, ptrdiff_t count);
  constexpr Function(One* function) : one(function) {}
  constexpr Function(Many* function) : many(function) {}
  One* one;
  Many* many;
};
struct MethodDef {
  const char* name;
  Function function;
  int flags;
  const char* documentation;
};
constexpr int kNoArguments = 0x0004;  // METH_NOARGS: f(self, NULL)
constexpr int kOneArgument = 0x0008;  // METH_O: f(self, argument)
constexpr int kArguments = 0x0080;    // METH_FASTCALL: f(self, arguments, count)

xk_python python;

xk_mailbox* mailbox_of(Object self) { return static_cast<xk_mailbox*>(python.address_in(self)); }

// Reads an int into `value`; returns false, with an exception set, if that fails.
bool read(Object object, int64_t* value) {
  *value = python.value_of(object);
  return *value != -1 || python.error() == nullptr;
}

Object post(Object self, Object) { return python.int_from(xk_mailbox_post(mailbox_of(self))); }

Object next(Object self, Object argument) {
  int64_t done;
  if (!read(argument, &done)) return nullptr;
  xk_mailbox* mailbox = mailbox_of(self);
  if (xk_mailbox_ready(mailbox, done) != 0) return python.int_from(xk_mailbox_next(mailbox, done));
  void* state = python.save_thread();
  const int64_t posted = xk_mailbox_next(mailbox, done);
  python.restore_thread(state);
  return python.int_from(posted);
}

Object await(Object self, const Object* arguments, ptrdiff_t count) {
  if (count != 2) return python.int_from(XK_INVALID_ARGUMENT);
  int64_t ticket, timeout_us;
  if (!read(arguments[0], &ticket) || !read(arguments[1], &timeout_us)) return nullptr;
  xk_mailbox* mailbox = mailbox_of(self);
  void* state = python.save_thread();
  const int32_t result = xk_mailbox_await(mailbox, ticket, timeout_us);
  python.restore_thread(state);
  return python.int_from(result);
}

constexpr MethodDef kMethods[] = {
    {"post", post, kNoArguments, nullptr},
    {"next", next, kOneArgument, nullptr},
    {"await", await, kArguments, nullptr},
};

}  // namespace

const void* xk_mailbox_python_methods(const xk_python* functions) {
  if (functions == nullptr) return nullptr;
  python = *functions;
  return kMethods;
}
