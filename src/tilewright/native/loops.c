/* Inner loops for NumPy's matmul, vecdot, matvec and vecmat that call the engine; tilewright.numpy_loops installs them.
 *
 * NumPy has checked, cast and broadcast the operands, and usually released the GIL. Machine code computes a batch of small
 * products at once. A Python function computes larger ones, and shares them among threads. NumPy's own loop does the rest. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>
#include <fenv.h>
#include <math.h>
#include <string.h>
#include "loops.h"

enum { MATMUL, VECDOT, MATVEC, VECMAT, UFUNCS };
enum { DOT, OUTER, VECTOR, NARROW, MATRIX, SHAPES, NARROWEST = 16, FEW = 4 }; /* see shape_of and is_multiplied */
enum { FLAGS = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW };

typedef struct {
    char *data;
    npy_intp rows, columns, row, column, step; /* strides in bytes: of rows, of columns, and to the next product's matrix */
} Matrices;

/* The compiled loop over a batch of small products, by Numba's calling convention: an array is nine arguments. */
#define ARRAY void *, void *, npy_intp, npy_intp, char *, npy_intp, npy_intp, npy_intp, npy_intp
#define AS_ARRAY(x, size) NULL, NULL, (x).rows * (x).columns, size, (x).data, (x).rows, (x).columns, (x).row, (x).column
typedef int (*Products)(void **, void **, ARRAY, ARRAY, ARRAY, npy_intp, npy_intp, npy_intp, npy_intp);
enum { RETURNED = 0, RETURNED_NONE = -2 };

typedef struct {
    PyUFuncGenericFunction numpy; /* NumPy's own loop */
    Products products;            /* NULL if no small products of this dtype are compiled */
    double least[2][SHAPES];      /* multiply-adds from which ours is faster, of small products and of larger ones */
} Loop;

static Loop loops[UFUNCS][NPY_HALF + 1];
/* A product is small if no side is longer than longest, or if A, B and C together have at most so many elements. */
static struct { Py_ssize_t longest, elements; double most_work, most_work_of_batch; } small;
static PyObject *multiply_arrays; /* multiply_arrays(a, b, c) returns whether it computed c */
static unsigned long main_thread;
static _Thread_local int is_inside; /* this thread is in multiply_arrays: products that are made there are NumPy's */

/* Where m, k, n are in NumPy's dims, and the inner strides of A, B, C in its steps; 0 for a size of 1. */
static const int sizes_at[UFUNCS][3] = {{1, 2, 3}, {0, 1, 0}, {1, 2, 0}, {0, 1, 2}};
static const int strides_at[UFUNCS][6] = {{3, 4, 5, 6, 7, 8}, {0, 3, 4, 0, 0, 0}, {3, 4, 5, 0, 6, 0}, {0, 3, 4, 5, 0, 6}};

static int is_complex(int type) { return type == NPY_CFLOAT || type == NPY_CDOUBLE; }
static int is_inexact(int type) { return type == NPY_HALF || type == NPY_FLOAT || type == NPY_DOUBLE || is_complex(type); }
static const npy_intp item_sizes[NPY_HALF + 1] = {
    [NPY_BYTE] = 1, [NPY_UBYTE] = 1, [NPY_SHORT] = 2, [NPY_USHORT] = 2, [NPY_HALF] = 2, [NPY_INT] = 4, [NPY_UINT] = 4,
    [NPY_LONG] = sizeof(long), [NPY_ULONG] = sizeof(long), [NPY_LONGLONG] = 8, [NPY_ULONGLONG] = 8,
    [NPY_FLOAT] = 4, [NPY_DOUBLE] = 8, [NPY_CFLOAT] = 8, [NPY_CDOUBLE] = 16};

static Matrices matrices(char *data, npy_intp rows, npy_intp columns, int const *at, npy_intp const *steps, npy_intp step, int type)
{
    npy_intp one = item_sizes[type]; /* in place of NumPy's stride of a size of 1, which is 0 */
    return (Matrices){data, rows, columns, rows > 1 ? steps[at[0]] : one, columns > 1 ? steps[at[1]] : one, step};
}

static Matrices transposed(Matrices x) { return (Matrices){x.data, x.columns, x.rows, x.column, x.row, x.step}; }

static int is_small(npy_intp m, npy_intp n, npy_intp k)
{
    npy_intp longest = m > n ? m : n;
    longest = longest > k ? longest : k; /* compared first: products of long sides may not fit 64 bits */
    return longest <= small.longest || (longest <= small.elements && m * k + k * n + m * n <= small.elements);
}

/* If it is not small, a product of few rows and few columns is a DOT, too. */
static int shape_of(npy_intp m, npy_intp n, npy_intp k, int is_large)
{
    npy_intp shorter = m < n ? m : n, longer = m < n ? n : m;
    if (longer <= (is_large ? NARROWEST : 1))
        return DOT;
    return k == 1 ? OUTER : shorter == 1 ? VECTOR : shorter <= NARROWEST ? NARROW : MATRIX;
}

static int multiply_small(Products products, npy_intp one, npy_intp count, Matrices a, Matrices b, Matrices c)
{
    /* A column-major C is Cᵀ = Bᵀ·Aᵀ, and so is better a column-major matrix times a vector. */
    if ((c.columns > 1 && c.column != one && c.row == one)
        || (c.rows == 1 && c.columns > 1 && b.row == one && b.column != one)
        || (c.columns == 1 && c.rows > 1 && a.row == one && a.column != one && c.row == one)) {
        Matrices first = a;
        a = transposed(b), b = transposed(first), c = transposed(c);
    }
    void *nothing = NULL, *raised = NULL;
    int status = products(&nothing, &raised, AS_ARRAY(a, one), AS_ARRAY(b, one), AS_ARRAY(c, one), count, a.step, b.step, c.step);
    return status == RETURNED || status == RETURNED_NONE; /* otherwise it found no memory */
}

static int raise_now(void *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}

/* NumPy looks for no exception after a loop that needs no GIL. So this thread raises it when it runs Python code again. */
static void raise_later(void)
{
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    PyErr_NormalizeException(&kind, &error, &traceback);
    PyException_SetTraceback(error, Py_None); /* its frames hold arrays over memory that may be freed */
    if (PyThread_get_thread_ident() != main_thread || Py_AddPendingCall(raise_now, error) < 0) {
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), kind);
        Py_DECREF(error);
    }
    Py_DECREF(kind);
    Py_XDECREF(traceback);
}

/* An array over matrices: of two axes if all products have the same one. */
static PyObject *as_array(Matrices x, int type, npy_intp count, int flags)
{
    npy_intp shape[] = {count, x.rows, x.columns}, strides[] = {x.step, x.row, x.column};
    int first = count == 1 || x.step == 0;
    return PyArray_New(&PyArray_Type, 3 - first, shape + first, type, strides + first, x.data, 0, flags, NULL);
}

static int multiply_by_python(int type, npy_intp count, Matrices const x[3])
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *a = as_array(x[0], type, count, NPY_ARRAY_ALIGNED), *b = as_array(x[1], type, count, NPY_ARRAY_ALIGNED);
    PyObject *c = as_array(x[2], type, count, NPY_ARRAY_BEHAVED), *done = NULL;
    is_inside = 1;
    if (a != NULL && b != NULL && c != NULL)
        done = PyObject_CallFunctionObjArgs(multiply_arrays, a, b, c, NULL);
    is_inside = 0;
    int is_computed = done != Py_False;
    if (done == NULL)
        raise_later();
    Py_XDECREF(a), Py_XDECREF(b), Py_XDECREF(c), Py_XDECREF(done);
    PyGILState_Release(state);
    return is_computed;
}

/* The exceptions that the elements of C allow: overflow if one is infinite or NaN, an invalid operation if one is NaN. */
static int allowed_by(Matrices c, int type, npy_intp count)
{
    int parts = is_complex(type) ? 2 : 1, size = (int)item_sizes[type] / parts, allowed = 0;
    npy_uint64 infinity = size == 2 ? 0x7c00 : size == 4 ? 0x7f800000 : 0x7ff0000000000000, sign = 1ULL << (8 * size - 1);
    for (npy_intp at = 0; at < count * c.rows * c.columns * parts; at++) {
        npy_intp column = at / parts % c.columns, row = at / parts / c.columns % c.rows, of = at / parts / c.columns / c.rows;
        npy_uint64 bits = 0; /* little-endian */
        memcpy(&bits, c.data + of * c.step + row * c.row + column * c.column + at % parts * size, size);
        bits &= ~sign;
        allowed |= bits > infinity ? FE_INVALID | FE_OVERFLOW : bits == infinity ? FE_OVERFLOW : 0;
    }
    return allowed;
}

/* Computes the products of a call, unless they are left to NumPy. */
static int is_multiplied(int ufunc, int type, char **args, npy_intp const *dims, npy_intp const *steps)
{
    Loop const *loop = &loops[ufunc][type];
    int const *size = sizes_at[ufunc], *at = strides_at[ufunc];
    npy_intp count = dims[0], m = size[0] ? dims[size[0]] : 1, k = size[1] ? dims[size[1]] : 1, n = size[2] ? dims[size[2]] : 1;
    int is_large = !is_small(m, n, k);
    double work = (double)m * n * k * count, least = loop->least[is_large][shape_of(m, n, k, is_large)];
    if (!(work > 0) || least == INFINITY || (work < least && count < FEW) || is_inside)
        return 0;
    Matrices x[] = {matrices(args[0], m, k, at, steps, steps[0], type), matrices(args[1], k, n, at + 2, steps, steps[1], type),
                    matrices(args[2], m, n, at + 4, steps, steps[2], type)};
    /* For A·Aᵀ NumPy calls syrk: half the work, and a symmetric result. */
    if (is_inexact(type) && x[0].data == x[1].data && m == n && m > 1 && x[0].row == x[1].column && x[0].column == x[1].row)
        return 0;
    double most = count > 1 && x[1].step != 0 ? small.most_work_of_batch : small.most_work;
    int is_alone = loop->products != NULL && !is_large && work <= most, before = fetestexcept(FLAGS);
    if (!(is_alone ? multiply_small(loop->products, item_sizes[type], count, x[0], x[1], x[2]) : multiply_by_python(type, count, x)))
        return 0;
    /* NumPy reports what is raised now: of integers nothing may be, and of others nothing by padding. */
    int raised = fetestexcept(FLAGS) & ~before, allowed = is_inexact(type) ? FE_UNDERFLOW : 0;
    if (is_inexact(type) && (raised & (FE_INVALID | FE_OVERFLOW)))
        allowed |= allowed_by(x[2], type, count);
    if (raised & ~allowed)
        feclearexcept(raised & ~allowed);
    return 1;
}

static void multiply(int ufunc, int type, char **args, npy_intp const *dims, npy_intp const *steps, void *data)
{
    if (!is_multiplied(ufunc, type, args, dims, steps))
        loops[ufunc][type].numpy(args, dims, steps, data);
}

/* ---- a loop for each type of each ufunc: NumPy does not say of which type a call is ---- */

#define EACH_TYPE(X) X(BYTE) X(UBYTE) X(SHORT) X(USHORT) X(INT) X(UINT) X(LONG) X(ULONG) X(LONGLONG) X(ULONGLONG) \
    X(HALF) X(FLOAT) X(DOUBLE) X(CFLOAT) X(CDOUBLE)
#define DEFINE(UFUNC, TYPE) static void UFUNC##_##TYPE(char **args, npy_intp const *dims, npy_intp const *steps, void *data) \
    { multiply(UFUNC, NPY_##TYPE, args, dims, steps, data); }
#define DEFINE_ALL(TYPE) DEFINE(MATMUL, TYPE) DEFINE(VECDOT, TYPE) DEFINE(MATVEC, TYPE) DEFINE(VECMAT, TYPE)
EACH_TYPE(DEFINE_ALL)
#define LIST(TYPE) [NPY_##TYPE] = {MATMUL_##TYPE, VECDOT_##TYPE, MATVEC_##TYPE, VECMAT_##TYPE},
static PyUFuncGenericFunction const ours[NPY_HALF + 1][UFUNCS] = {EACH_TYPE(LIST)};

/* set_engine(multiply_arrays, longest, elements, most_work, most_work_of_batch, main_thread) */
static PyObject *set_engine(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function;
    if (!PyArg_ParseTuple(args, "Onnddk", &function, &small.longest, &small.elements, &small.most_work,
                          &small.most_work_of_batch, &main_thread))
        return NULL;
    Py_INCREF(function);
    Py_XDECREF(multiply_arrays);
    multiply_arrays = function;
    Py_RETURN_NONE;
}

/* replace_loop(ufunc, number, type, products, least) installs our loop; with least empty NumPy's is restored. Returns whether
 * the loop there was the other of the two: a third one, of another library, stays, because it may call ours. */
static PyObject *replace_loop(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *ufunc;
    unsigned number, type;
    unsigned long long products;
    const char *least;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "OIIKy#", &ufunc, &number, &type, &products, &least, &length))
        return NULL;
    int has_loop = PyObject_TypeCheck(ufunc, &PyUFunc_Type) && number < UFUNCS && type <= NPY_HALF && ours[type][number] != NULL;
    Loop *loop = has_loop ? &loops[number][type] : NULL;
    int signature[] = {(int)type, (int)type, (int)type}, is_ours = length == sizeof loop->least;
    if (!has_loop || multiply_arrays == NULL || (!is_ours && length))
        return PyErr_Format(PyExc_ValueError, "no loop of ufunc %u for type %u, or no engine was set", number, type);
    if (!is_ours && loop->numpy == NULL)
        Py_RETURN_FALSE; /* it was never replaced */
    for (int i = 0; i < 2 * SHAPES; i++)
        loop->least[0][i] = INFINITY;
    PyUFuncGenericFunction there, other = is_ours ? loop->numpy : ours[type][number];
    PyUFuncGenericFunction *found = is_ours && loop->numpy == NULL ? &loop->numpy : &there;
    if (PyUFunc_ReplaceLoopBySignature((PyUFuncObject *)ufunc, is_ours ? ours[type][number] : loop->numpy, signature, found) < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "the ufunc has no loop for type %u", type);
    if (other != NULL && *found != other) {
        PyUFunc_ReplaceLoopBySignature((PyUFuncObject *)ufunc, *found, signature, &there);
        Py_RETURN_FALSE;
    }
    if (is_ours) {
        loop->products = (Products)(uintptr_t)products;
        memcpy(loop->least, least, sizeof loop->least);
    }
    Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"set_engine", set_engine, METH_VARARGS, NULL}, {"replace_loop", replace_loop, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

int add_loops(PyObject *module)
{
    import_array1(-1);
    import_umath1(-1);
    return PyModule_AddFunctions(module, functions);
}
