/* The module tilewright._native: functions that Python calls, and the short ways of products on the CPU.

   Every function returns None where Python must take the long way: for other types, different dtypes, overlap, an empty
   axis, a wrong shape, much work, unless Python planned a product of that shape before. The rules that kernels have for
   sizes and strides are compiled from Python; here they are functions at addresses. */
#define _GNU_SOURCE /* for sched_getaffinity */
#include "native.h"
#ifdef __linux__
#include <sched.h>
#endif
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <stddef.h>

/* Overhead of a product in multiply-adds, and those from which the GIL is released: that costs 50 ns, and so many last a
   microsecond or more. The most products of a batch. */
#define WORK_OF_A_CALL 1000
#define WORTH_RELEASING 60000
#define MOST_PRODUCTS ((int64_t)1 << 32)
/* Products that are known at most, slots of their table that are searched for one, and words of a call with its counters. */
#define MOST_KNOWN 2048
#define PROBES 32
#define MOST_WORDS 4096
/* Bit 31 of the flags of arrays whose first write warns, which NumPy's headers do not name. */
#define WARNS_ON_WRITE INT32_MIN

/* The compiled functions for shared products (cpu/runtime/entries.py). */
typedef int64_t Enough(int64_t *call, int64_t *boxes, int64_t count);
typedef int64_t Compute(int64_t *call, int64_t *boxes, int64_t count, char *a, char *b, char *c, const Batch *batch,
                        char *space, int64_t itemsize);
/* Words of a call, which cpu/runtime/facts.py describes. */
enum { COUNTS = 44, OTHERS = 45, WAKES = 47, NOT_CALLED = 48, NOT_READY = 49, COUNTERS = 56 };

typedef struct {
    _Atomic(PyArray_Descr *) dtype; /* NULL until it is learned, after all other fields */
    Products *products;
    Suits *suits, *suits_alone;                    /* products of a batch, and a single one */
    int64_t most, most_of_batch, most_of_batch_by_one; /* multiply-adds; the last where all share B */
} Learned;

/* What shared products need: machine code, and of Python functions without arguments, and objects, each with the name of an
   attribute. Only machine code runs in them. */
enum { STOP, OF_THIS_CONTEXT, MOST_BY_DEFAULT, LIMITS, OF_THE_PROCESS, CREW, MAILBOXES, PRODUCTS, WAKES_ALL, OF_PYTHON };
typedef struct {
    Enough *enough;
    Compute *compute;
    PyObject *of_python[OF_PYTHON];
} Team;

/* How two matrices of one dtype and shape are multiplied under one limit of threads: by a call, unless its words are 0; if
   they are, or too few other threads are there, by this one alone, provided that `alone` is not 0. If C is symmetric, the key
   has −n. */
enum { KEY = 5, SYMMETRIC = 2 };
typedef struct {
    int64_t key[KEY], alone, call[COUNTERS]; /* type number, m, n, k, limit; then all words before the counters */
    PyArray_Descr *result;
} Known;

/* The module's state. What its pointers point to is written before they are, and lives as long as the process. */
typedef struct {
    Learned learned[NPY_NTYPES_LEGACY]; /* one for each dtype of NumPy's own */
    _Atomic(Team *) team;
    _Atomic(Known *) known[MOST_KNOWN];
} State;

/* An array of which the last `own` axes belong to a single product, and the `batch` others to the batch. */
typedef struct {
    PyArrayObject *array;
    char *data;
    int own, batch;
    const npy_intp *shape, *strides;
    int64_t rows, columns, step[2]; /* of a single matrix, with its strides */
} Operand;

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* Whether x is exactly an ndarray with these flags and without those, whose memory belongs to one, and so cannot have been
   unmapped. With `admitted` the owner was checked before. */
static int is_plain(PyObject *x, int with, int without, int admitted)
{
    if (!PyArray_CheckExact(x) || (PyArray_FLAGS((PyArrayObject *)x) & (with | without)) != with)
        return 0;
    while (!admitted && (x = PyArray_BASE((PyArrayObject *)x)) != NULL)
        if (!PyArray_CheckExact(x))
            return 0;
    return 1;
}

/* An array with or without an axis for the rows, and one for the columns, of a matrix. */
static Operand operand(PyObject *x, int has_rows, int has_columns)
{
    PyArrayObject *array = (PyArrayObject *)x;
    int own = has_rows + has_columns, batch = PyArray_NDIM(array) - own;
    Operand o = {array, PyArray_DATA(array), own, batch, PyArray_DIMS(array), PyArray_STRIDES(array), 1, 1, {0, 0}};
    if (has_rows)
        o.rows = o.shape[batch], o.step[0] = o.strides[batch];
    if (has_columns)
        o.columns = o.shape[batch + own - 1], o.step[1] = o.strides[batch + own - 1];
    return o;
}

/* Read two factors; whether they are plain arrays of one dtype whose sizes fit, and none is 0. A vector is one row of A, or
   one column of B. */
static int read_factors(PyObject *const *args, int admitted, Operand *a, Operand *b)
{
    if (!is_plain(args[0], NPY_ARRAY_ALIGNED, 0, admitted) || !is_plain(args[1], NPY_ARRAY_ALIGNED, 0, admitted))
        return 0;
    int axes_a = PyArray_NDIM((PyArrayObject *)args[0]), axes_b = PyArray_NDIM((PyArrayObject *)args[1]);
    *a = operand(args[0], axes_a > 1, axes_a > 0), *b = operand(args[1], axes_b > 0, axes_b > 1);
    return PyArray_DESCR(a->array) == PyArray_DESCR(b->array) && a->own && b->own && a->columns == b->rows &&
           a->rows && b->columns && a->columns;
}

/* Length and stride of an axis of the batch; the last axis is number 1. The stride is 0 where it broadcasts. */
static int64_t length(const Operand *x, int axis)
{
    return axis <= x->batch ? x->shape[x->batch - axis] : 1;
}

static int64_t step(const Operand *x, int axis)
{
    return length(x, axis) > 1 ? x->strides[x->batch - axis] : 0;
}

/* Write the shape of C, with so many axes of the batch; returns how many products that has by broadcasting, 0 for none or
   too many. */
static int64_t result_shape(const Operand *a, const Operand *b, int batch, npy_intp *shape)
{
    int64_t count = 1;
    for (int axis = 1; axis <= batch; axis++) {
        int64_t x = length(a, axis), y = length(b, axis), found = x == y || y == 1 ? x : x == 1 ? y : 0;
        if (found == 0 || found > MOST_PRODUCTS / count)
            return 0;
        shape[batch - axis] = found;
        count *= found;
    }
    if (a->own == 2)
        shape[batch++] = a->rows;
    if (b->own == 2)
        shape[batch] = b->columns;
    return count;
}

static int are_disjoint(const Operand *x, const Operand *y, int64_t itemsize)
{
    const Operand *both[] = {x, y};
    intptr_t low[2], high[2];
    for (int i = 0; i < 2; i++) {
        low[i] = (intptr_t)both[i]->data, high[i] = low[i] + itemsize;
        for (int axis = 0; axis < both[i]->batch + both[i]->own; axis++) {
            intptr_t reach = (both[i]->shape[axis] - 1) * both[i]->strides[axis];
            *(reach < 0 ? &low[i] : &high[i]) += reach;
        }
    }
    return high[0] <= low[1] || high[1] <= low[0];
}

/* The caller's C or, if that is None, a new one, as a new reference. NULL without an exception if it is no array of this
   dtype and shape that can be written to, or shares memory with a factor, whose elements have at most as many bytes. */
static PyObject *target(PyObject *out, PyArray_Descr *dtype, const Operand *a, const Operand *b, const npy_intp *shape,
                        int axes, int admitted)
{
    if (out == Py_None) {
        Py_INCREF((PyObject *)dtype);
        return PyArray_NewFromDescr(&PyArray_Type, dtype, axes, shape, NULL, NULL, 0, NULL);
    }
    if (!is_plain(out, NPY_ARRAY_BEHAVED, WARNS_ON_WRITE, admitted))
        return NULL;
    Operand c = operand(out, 0, 0);
    if (PyArray_DESCR(c.array) != dtype || c.batch != axes || (axes && memcmp(c.shape, shape, axes * sizeof *shape)))
        return NULL;
    int64_t itemsize = PyDataType_ELSIZE(dtype);
    return are_disjoint(&c, a, itemsize) && are_disjoint(&c, b, itemsize) ? Py_NewRef(out) : NULL;
}

/* Rows of C from which a product of A and its transpose is symmetric: kernels then compute a triangle of it (GRAM_LEAST in
   product/operands.py). */
enum { GRAM_LEAST = 64 };

static int is_gram(const Operand *a, const Operand *b)
{
    return a->data == b->data && a->rows >= GRAM_LEAST && a->rows == b->columns && a->step[0] == b->step[1] &&
           a->step[1] == b->step[0];
}

/* The products along the last axis of a batch. Rows of a C without an axis of columns have unit stride. */
static Batch batch_of(const Operand *a, const Operand *b, const Operand *c)
{
    int64_t column = b->own == 2 ? c->step[1] : PyArray_ITEMSIZE(c->array);
    return (Batch){
        a->rows, b->columns, a->columns, {a->step[0], a->step[1]}, {b->step[0], b->step[1]}, {c->step[0], column},
        length(c, 1), {step(a, 1), step(b, 1), step(c, 1)},
    };
}

/* What is returned once C was computed, or with `done` 0 was not: None, or NULL after an exception. A new C without axes is
   returned as a scalar. */
static PyObject *finished(PyObject *c, PyObject *out, int done)
{
    if (done)
        return out == Py_None ? PyArray_Return((PyArrayObject *)c) : c;
    Py_XDECREF(c);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* ---- shared products --------------------------------------------------------------------------------------------- */

/* Call a function of the Python module shared_products; returns whether it raised no exception. */
static int tell(const Team *team, const char *function, const char *types, int64_t threads, int at_once)
{
    PyObject *said = PyObject_CallMethod(team->of_python[PRODUCTS], function, types, (long long)threads, at_once);
    Py_XDECREF(said);
    return said != NULL;
}

/* An attribute: its name follows the object. */
static PyObject *attribute(const Team *team, int of)
{
    return PyObject_GetAttr(team->of_python[of], team->of_python[of + 1]);
}

/* The product of this thread and those that stand by or are woken; the call is changed. None if too few are there, or in a
   run that can be stopped. */
static PyObject *share(const Team *team, int64_t *call, PyArray_Descr *dtype, const Operand *a, const Operand *b,
                       PyObject *out, char *space)
{
    PyObject *stop = PyObject_CallNoArgs(team->of_python[STOP]), *boxes = attribute(team, CREW), *made = NULL;
    PyObject *wakes = attribute(team, PRODUCTS);
    int fine = stop != NULL && boxes != NULL && wakes != NULL, at_once = wakes == Py_True && call[OTHERS], done = 0;
    if (fine && stop == Py_None && PyArray_Check(boxes)) {
        int64_t *addresses = PyArray_DATA((PyArrayObject *)boxes), workers = PyArray_SIZE((PyArrayObject *)boxes);
        const npy_intp shape[] = {a->rows, b->columns};
        if (at_once) {
            call[WAKES] = call[OTHERS];
            fine = PyObject_SetAttr(team->of_python[PRODUCTS], team->of_python[WAKES_ALL], Py_False) == 0;
        }
        if (fine && team->enough(call, addresses, workers))
            made = target(out, dtype, a, b, shape, 2, 0);
        if (made != NULL) {
            Operand c = operand(made, 1, 1);
            Batch batch = batch_of(a, b, &c);
            PyThreadState *thread = PyEval_SaveThread();
            done = team->compute(call, addresses, workers, a->data, b->data, c.data, &batch, space,
                                 PyDataType_ELSIZE(dtype)) == 1;
            PyEval_RestoreThread(thread);
        }
    }
    Py_XDECREF(stop), Py_XDECREF(boxes), Py_XDECREF(wakes);
    PyObject *product = finished(made, out, done);
    if (product != NULL && call[NOT_READY] && call[WAKES])
        fine = tell(team, "enter", "Li", call[OTHERS] + 1, at_once);
    else if (done && call[NOT_CALLED])
        fine = tell(team, "wake_if_many", "L", call[OTHERS] + 1, 0);
    if (!fine)
        Py_CLEAR(product);
    return product;
}

/* shared_product(a, b, out, dtype of C, words of the call, workspace): the call is changed. */
static PyObject *shared_product(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    const Team *team = atomic_load_explicit(&((State *)PyModule_GetState(module))->team, memory_order_acquire);
    Operand a, b;
    if (given != 6 || team == NULL || !read_factors(args, 0, &a, &b) || a.own + b.own != 4 || a.batch + b.batch)
        Py_RETURN_NONE;
    if (!PyArray_DescrCheck(args[3]) || !PyArray_Check(args[4]) || !PyArray_Check(args[5]))
        Py_RETURN_NONE;
    int64_t *call = PyArray_DATA((PyArrayObject *)args[4]);
    return share(team, call, (PyArray_Descr *)args[3], &a, &b, args[2], PyArray_DATA((PyArrayObject *)args[5]));
}

/* connect(enough, compute, *of_python): a Team; the first one stays. */
static PyObject *connect(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Team *team = PyMem_Calloc(1, sizeof *team), *none = NULL;
    if (team == NULL || given != 2 + OF_PYTHON)
        return PyErr_NoMemory();
    team->enough = (Enough *)PyLong_AsVoidPtr(args[0]), team->compute = (Compute *)PyLong_AsVoidPtr(args[1]);
    for (int i = 0; i < OF_PYTHON; i++)
        team->of_python[i] = Py_NewRef(args[2 + i]);
    atomic_compare_exchange_strong(&((State *)PyModule_GetState(module))->team, &none, team);
    Py_RETURN_NONE;
}

/* ---- products of a known shape ----------------------------------------------------------------------------------- */

/* What host.limits.get_threads says, without Python code. 0 if the mask of processors is too long, −1 after an exception. */
static int64_t limit_of_threads(const Team *team)
{
    PyObject *limit = PyObject_CallNoArgs(team->of_python[OF_THIS_CONTEXT]);
    if (limit == Py_None)
        Py_DECREF(limit), limit = attribute(team, LIMITS);
    int by_default = limit == Py_None;
    if (by_default)
        Py_DECREF(limit), limit = PyObject_CallNoArgs(team->of_python[MOST_BY_DEFAULT]);
    int64_t count = limit == NULL ? -1 : PyLong_AsLongLong(limit);
    Py_XDECREF(limit);
#ifdef __linux__
    cpu_set_t mask;
    if (by_default && count > 1) {
        int64_t allowed = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 0;
        return allowed < count ? allowed : count;
    }
#endif
    return count;
}

/* The slot of a key, which is empty if the product is not known; NULL if there is no room for it. */
static _Atomic(Known *) *slot_of(State *state, const int64_t key[KEY])
{
    uint64_t hash = 0;
    for (int i = 0; i < KEY; i++)
        hash = (hash ^ (uint64_t)key[i]) * 0x9E3779B97F4A7C15, hash ^= hash >> 32;
    for (int i = 0; i < PROBES; i++) {
        _Atomic(Known *) *slot = &state->known[(hash + i) % MOST_KNOWN];
        const Known *known = atomic_load_explicit(slot, memory_order_acquire);
        if (known == NULL || memcmp(known->key, key, sizeof known->key) == 0)
            return slot;
    }
    return NULL;
}

/* The product of two matrices that is not small, or is symmetric, if it is known how to compute it, or else None. `alone` is set
   where this thread is to compute it by the kernel for small products, if that suits it. */
__attribute__((noinline, cold)) /* so that small products do without its stack */
static PyObject *known_product(State *state, const Operand *a, const Operand *b, PyObject *out, int *alone,
                               int symmetric)
{
    const Team *team = atomic_load_explicit(&state->team, memory_order_acquire);
    int is_one = a->own + b->own == 4 && a->batch + b->batch == 0;
    int64_t limit = team == NULL || !is_one ? 0 : limit_of_threads(team);
    int64_t n = symmetric ? -b->columns : b->columns;
    const int64_t key[] = {PyArray_TYPE(a->array), a->rows, n, a->columns, limit};
    _Atomic(Known *) *slot = limit > 0 ? slot_of(state, key) : NULL;
    const Known *known = slot == NULL ? NULL : atomic_load_explicit(slot, memory_order_acquire);
    PyObject *product = limit < 0 ? NULL : Py_NewRef(Py_None);
    if (known == NULL)
        return product;
    int64_t counts = known->call[COUNTS];
    if (counts) {
        _Alignas(64) int64_t call[MOST_WORDS];
        memcpy(call, known->call, sizeof known->call);
        memset(call + COUNTERS, 0, counts * sizeof *call);
        call[COUNTERS + counts - 2] = symmetric ? SYMMETRIC : 0;
        call[COUNTERS + counts - 1] = call[OTHERS] + 1;
        Py_DECREF(product);
        product = share(team, call, known->result, a, b, out, NULL);
        if (product != Py_None || !known->alone)
            return product;
        if (!tell(team, "wake_if_many", "L", call[OTHERS] + 1, 0))
            Py_CLEAR(product);
    }
    *alone = product != NULL;
    return product;
}

/* remember(dtype of C, numbers): the fields of a Known, which is left out if there is one, or no room. */
static PyObject *remember(PyObject *module, PyObject *args)
{
    PyArray_Descr *result;
    const char *numbers;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(args, "O!y#", &PyArrayDescr_Type, &result, &numbers, &bytes))
        return NULL;
    Known *known = PyMem_Calloc(1, sizeof *known), *none = NULL;
    if (known == NULL || bytes > (Py_ssize_t)offsetof(Known, result))
        return PyErr_NoMemory();
    memcpy(known, numbers, bytes);
    known->result = result;
    int fits = COUNTERS + known->call[COUNTS] <= MOST_WORDS;
    _Atomic(Known *) *slot = fits ? slot_of(PyModule_GetState(module), known->key) : NULL;
    if (slot != NULL && atomic_compare_exchange_strong(slot, &none, known))
        Py_INCREF((PyObject *)result);
    else
        PyMem_Free(known);
    Py_RETURN_NONE;
}

/* ---- small products ---------------------------------------------------------------------------------------------- */

/* All products of a batch; one call computes those along the last axis. */
static int multiply(Products *products, const Operand *a, const Operand *b, const Operand *c, int64_t count)
{
    Batch batch = batch_of(a, b, c);
    int done = 1;
    for (int64_t outer = 0; outer < count / batch.count; outer++) {
        int64_t rest = outer, of_a = 0, of_b = 0, of_c = 0;
        for (int axis = 2; axis <= c->batch; axis++) {
            int64_t index = rest % length(c, axis);
            rest /= length(c, axis);
            of_a += index * step(a, axis), of_b += index * step(b, axis), of_c += index * step(c, axis);
        }
        done &= products(a->data + of_a, b->data + of_b, c->data + of_c, &batch) == 1;
    }
    return done;
}

/* small_product(a, b, out): the product, or None for one that must go the long way. With a fourth argument there is no limit on
   work, and nothing is checked; with a fifth one, operands are checked. */
static PyObject *small_product(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    int admitted = given == 4, any_work = given > 3;
    Operand a, b;
    if (given < 3 || !read_factors(args, admitted, &a, &b) || (unsigned)PyArray_TYPE(a.array) >= NPY_NTYPES_LEGACY)
        Py_RETURN_NONE;
    State *state = PyModule_GetState(module);
    Learned *learned = &state->learned[PyArray_TYPE(a.array)];
    PyArray_Descr *dtype = atomic_load_explicit(&learned->dtype, memory_order_acquire);
    int batch = a.batch > b.batch ? a.batch : b.batch, alone = 0;
    if (PyArray_DESCR(a.array) != dtype)
        Py_RETURN_NONE;
    if (!any_work && is_gram(&a, &b))
        return known_product(state, &a, &b, args[2], &alone, 1);
    if (!(batch ? learned->suits : learned->suits_alone)(a.rows, b.columns, a.columns))
        return any_work ? Py_NewRef(Py_None) : known_product(state, &a, &b, args[2], &alone, 0);
    npy_intp shape[NPY_MAXDIMS];
    int64_t count = result_shape(&a, &b, batch, shape), most = learned->most;
    double each = (double)a.rows * b.columns * a.columns, work = count * (each + WORK_OF_A_CALL);
    if (count > 1)
        most = b.own == 2 && b.batch == 0 ? learned->most_of_batch_by_one : learned->most_of_batch;
    if (count == 0)
        Py_RETURN_NONE;
    if (!any_work && work > most) {
        PyObject *product = known_product(state, &a, &b, args[2], &alone, 0);
        if (!alone)
            return product;
        Py_DECREF(product);
    }
    PyObject *made = target(args[2], dtype, &a, &b, shape, batch + a.own + b.own - 2, admitted);
    if (made == NULL)
        return finished(NULL, args[2], 0);
    Operand c = operand(made, a.own == 2, b.own == 2);
    PyThreadState *thread = work > WORTH_RELEASING ? PyEval_SaveThread() : NULL;
    int done = multiply(learned->products, &a, &b, &c, count);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    return finished(made, args[2], done);
}

/* learn(dtype, products, suits, suits_alone, most, most_of_batch, most_of_batch_by_one): addresses and limits. */
static PyObject *learn(PyObject *module, PyObject *args)
{
    PyArray_Descr *dtype;
    Learned made = {0};
    if (!PyArg_ParseTuple(args, "O!KKKLLL", &PyArrayDescr_Type, &dtype, &made.products, &made.suits, &made.suits_alone,
                          &made.most, &made.most_of_batch, &made.most_of_batch_by_one))
        return NULL;
    Learned *learned = &((State *)PyModule_GetState(module))->learned[dtype->type_num];
    if ((unsigned)dtype->type_num < NPY_NTYPES_LEGACY && atomic_load(&learned->dtype) == NULL) {
        *learned = made;
        atomic_store_explicit(&learned->dtype, PyArray_DescrFromType(dtype->type_num), memory_order_release);
    }
    Py_RETURN_NONE;
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"small_product", (PyCFunction)small_product, METH_FASTCALL, NULL},
    {"learn", learn, METH_VARARGS, NULL},
    {"shared_product", (PyCFunction)shared_product, METH_FASTCALL, NULL},
    {"connect", (PyCFunction)connect, METH_FASTCALL, NULL},
    {"remember", remember, METH_VARARGS, NULL},
    {"replay", replay, METH_O, NULL},
    {"evaluate", (PyCFunction)evaluate, METH_FASTCALL, NULL},
    {"way_search", way_search, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int begin(PyObject *module)
{
    import_array1(-1);
    PyObject *type = PyType_FromSpec(&exchange_type);
    if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0)
        return -1;
    Py_DECREF(type);
    if (add_loops(module) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "key", TILEWRIGHT_KEY);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, begin},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = sizeof(State), .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
