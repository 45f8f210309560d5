/* What the files of the module tilewright._native share. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* replay(program): a function run(*addresses, stream) that makes recorded launches and returns 0 or a status. */
PyObject *replay(PyObject *module, PyObject *program);
/* The type Exchange, with the methods key, product and read, for the tensors of one library. */
extern PyType_Spec exchange_type;
