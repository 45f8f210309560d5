/* Inner loops for NumPy's matmul, vecdot, matvec and vecmat that call the engine; tilewright.api.numpy_loops installs them.
 *
 * NumPy has checked, cast and broadcast the operands, and usually released the GIL. Machine code computes a batch of small
 * products at once. A Python function computes larger ones, and shares them among threads. NumPy's own loop does the rest. */
#include "native.h"
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>
#include <fenv.h>
#include <math.h>

enum { MATMUL, VECDOT, MATVEC, VECMAT, UFUNCS };
enum { DOT, OUTER, VECTOR, NARROW, MATRIX, SHAPES, NARROWEST = 16, FEW = 4 }; /* see shape_of and is_multiplied */
enum { FLAGS = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW };

typedef struct {
    PyUFuncGenericFunction numpy; /* NumPy's own loop */
    Products *products;           /* NULL if no small products of this dtype are compiled */
    double least[2][SHAPES];      /* multiply-adds from which ours is faster, of small products and of larger ones */
} Loop;

static Loop loops[UFUNCS][NPY_HALF + 1];
static struct { Suits *suits; double most_work, most_work_of_batch; } small; /* products that one thread computes at once */
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

/* Two inner strides of a matrix; in place of NumPy's stride of a size of 1, which is 0, that of neighbours. */
static void read_strides(int64_t strides[2], npy_intp rows, npy_intp columns, int const at[2], npy_intp const *steps, int type)
{
    strides[0] = rows > 1 ? steps[at[0]] : item_sizes[type];
    strides[1] = columns > 1 ? steps[at[1]] : item_sizes[type];
}

/* If it is not small, a product of few rows and few columns is a DOT, too. */
static int shape_of(npy_intp m, npy_intp n, npy_intp k, int is_large)
{
    npy_intp shorter = m < n ? m : n, longer = m < n ? n : m;
    if (longer <= (is_large ? NARROWEST : 1))
        return DOT;
    return k == 1 ? OUTER : shorter == 1 ? VECTOR : shorter <= NARROWEST ? NARROW : MATRIX;
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

/* An array over the matrices of a batch: of two axes if all products have the same one. */
static PyObject *as_array(char *data, int type, int64_t const sizes[3], int64_t step, int64_t const inner[2], int flags)
{
    npy_intp shape[] = {sizes[0], sizes[1], sizes[2]}, strides[] = {step, inner[0], inner[1]};
    int first = sizes[0] == 1 || step == 0;
    return PyArray_New(&PyArray_Type, 3 - first, shape + first, type, strides + first, data, 0, flags, NULL);
}

static int multiply_by_python(int type, char **args, Batch const *x)
{
    int64_t const of_a[] = {x->count, x->m, x->k}, of_b[] = {x->count, x->k, x->n}, of_c[] = {x->count, x->m, x->n};
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *a = as_array(args[0], type, of_a, x->steps[0], x->a, NPY_ARRAY_ALIGNED), *done = NULL;
    PyObject *b = as_array(args[1], type, of_b, x->steps[1], x->b, NPY_ARRAY_ALIGNED);
    PyObject *c = as_array(args[2], type, of_c, x->steps[2], x->c, NPY_ARRAY_BEHAVED);
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
static int allowed_by(char const *c, int type, Batch const *x)
{
    int parts = is_complex(type) ? 2 : 1, size = (int)item_sizes[type] / parts, allowed = 0;
    npy_uint64 infinity = size == 2 ? 0x7c00 : size == 4 ? 0x7f800000 : 0x7ff0000000000000, sign = 1ULL << (8 * size - 1);
    for (int64_t at = 0; at < x->count * x->m * x->n * parts; at++) {
        int64_t column = at / parts % x->n, row = at / parts / x->n % x->m, of = at / parts / x->n / x->m;
        npy_uint64 bits = 0; /* little-endian */
        memcpy(&bits, c + of * x->steps[2] + row * x->c[0] + column * x->c[1] + at % parts * size, size);
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
    int is_large = !small.suits(m, n, k);
    double work = (double)m * n * k * count, least = loop->least[is_large][shape_of(m, n, k, is_large)];
    if (!(work > 0) || least == INFINITY || (work < least && count < FEW) || is_inside)
        return 0;
    Batch x = {.m = m, .n = n, .k = k, .count = count, .steps = {steps[0], steps[1], steps[2]}};
    read_strides(x.a, m, k, at, steps, type);
    read_strides(x.b, k, n, at + 2, steps, type);
    read_strides(x.c, m, n, at + 4, steps, type);
    /* For A·Aᵀ NumPy calls syrk: half the work, and a symmetric result. */
    if (is_inexact(type) && args[0] == args[1] && m == n && m > 1 && x.a[0] == x.b[1] && x.a[1] == x.b[0])
        return 0;
    double most = count > 1 && x.steps[1] != 0 ? small.most_work_of_batch : small.most_work;
    int is_alone = loop->products != NULL && !is_large && work <= most, before = fetestexcept(FLAGS);
    if (!(is_alone ? loop->products(args[0], args[1], args[2], &x) == 1 : multiply_by_python(type, args, &x)))
        return 0;
    /* NumPy reports what is raised now: of integers nothing may be, and of others nothing by padding. */
    int raised = fetestexcept(FLAGS) & ~before, allowed = is_inexact(type) ? FE_UNDERFLOW : 0;
    if (is_inexact(type) && (raised & (FE_INVALID | FE_OVERFLOW)))
        allowed |= allowed_by(args[2], type, &x);
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

/* set_engine(multiply_arrays, suits, most_work, most_work_of_batch, main_thread) */
static PyObject *set_engine(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function;
    if (!PyArg_ParseTuple(args, "OKddk", &function, &small.suits, &small.most_work, &small.most_work_of_batch, &main_thread))
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
        loop->products = (Products *)(uintptr_t)products;
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
