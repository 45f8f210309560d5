/* What the files of the module tilewright._native share. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* replay(program): a function run(*addresses, stream) that makes recorded launches and returns 0 or a status. */
PyObject *replay(PyObject *module, PyObject *program);
/* evaluate(program, …): a program over columns of float64 (columns.c). */
PyObject *evaluate(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
/* way_search(sets, facts, programs): a function that finds the fastest way to compute a product (columns.c). */
PyObject *way_search(PyObject *module, PyObject *args);
/* The type Exchange, with the methods key, product and read, for the tensors of one library. */
extern PyType_Spec exchange_type;

/* The compiled functions for small products (cpu/runtime/entries.py). A batch: sizes of the matrices, two strides of A, B and C in bytes, the
   number of products, and the bytes from each matrix to the next. */
typedef struct { int64_t m, n, k, a[2], b[2], c[2], count, steps[3]; } Batch;
typedef int64_t Suits(int64_t m, int64_t n, int64_t k);
typedef int64_t Products(char *a, char *b, char *c, const Batch *batch);

/* Adds the functions that install the engine's loops in NumPy's ufuncs. Returns -1 with an exception set. */
int add_loops(PyObject *module);
