/* Programs over columns of float64, which predict the times of all sets of parameters of a kernel (kernels/columns.py).
   A value is a number, or a column with a number for each set. Columns are computed a strip at a time, which stays in
   the first cache. */
#include "native.h"
#include <math.h>
#include <stdlib.h>

/* The operations, in the order of OPERATIONS in kernels/columns.py. */
enum { ADD, SUB, MUL, DIV, FLOOR_DIV, MOD, CEIL_DIV, MIN, MAX, SQRT, NEGATE, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, EQUAL, NOT_EQUAL };
#define STRIP 64

/* Values are numbered: those that are given, then one for each step. Of each this says where it is: a number i as i, a
   column i as ~i, of which the first `rows` are rows of the table and the next ones those of the call. */
typedef struct { int32_t operation, to, a, b; } Step;
typedef struct { int32_t numbers, given, rows, columns, steps, result; Step step[]; } Program;

static double remainder_of(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

#define EACH(expression) \
    for (int i = 0; i < count; i++) { const double x = a[i], y = b[i]; (void)y; to[i] = (expression); } \
    break

/* One step of `count` numbers. Returns whether it divides by zero. */
static int compute(int operation, int count, double *restrict to, const double *restrict a, const double *restrict b)
{
    int zero = 0;
    if (operation >= DIV && operation <= CEIL_DIV)
        for (int i = 0; i < count; i++)
            zero |= b[i] == 0;
    if (zero)
        return 1;
    switch (operation) {
    case ADD: EACH(x + y);
    case SUB: EACH(x - y);
    case MUL: EACH(x * y);
    case DIV: EACH(x / y);
    case FLOOR_DIV: EACH(floor(x / y));
    case MOD: EACH(remainder_of(x, y));
    case CEIL_DIV: EACH(ceil(x / y));
    case MIN: EACH(x < y ? x : y);
    case MAX: EACH(x > y ? x : y);
    case SQRT: EACH(sqrt(x));
    case NEGATE: EACH(-x);
    case LESS: EACH(x < y);
    case LESS_EQUAL: EACH(x <= y);
    case GREATER: EACH(x > y);
    case GREATER_EQUAL: EACH(x >= y);
    case EQUAL: EACH(x == y);
    case NOT_EQUAL: EACH(x != y);
    }
    return 0;
}

/* The operand at `place`: a strip of a column, or a number as many times. */
static const double *operand(int place, const double *numbers, const double *strips, double *spread, int count)
{
    if (place < 0)
        return strips + (Py_ssize_t)~place * STRIP;
    for (int i = 0; i < count; i++)
        spread[i] = numbers[place];
    return spread;
}

/* All strips of the result. Returns whether a step divides by zero. */
static int run(const Program *p, double *numbers, double *strips, const double *table, Py_ssize_t width, const int64_t *index,
               const double *const *columns, double *out, Py_ssize_t size)
{
    double first[STRIP], second[STRIP];
    for (int i = 0; i < p->steps; i++) {
        const Step *s = &p->step[i];
        if (s->to >= 0 && compute(s->operation, 1, numbers + s->to, numbers + s->a, numbers + s->b))
            return 1;
    }
    for (Py_ssize_t at = 0; at < size; at += STRIP) {
        const int count = (int)(size - at < STRIP ? size - at : STRIP);
        for (int r = 0; r < p->rows; r++)
            for (int i = 0; i < count; i++)
                strips[r * STRIP + i] = table[r * width + (index == NULL ? at + i : index[at + i])];
        for (int c = 0; c < p->columns; c++)
            memcpy(strips + (p->rows + c) * STRIP, columns[c] + at, count * sizeof(double));
        for (int i = 0; i < p->steps; i++) {
            const Step *s = &p->step[i];
            if (s->to < 0 && compute(s->operation, count, strips + (Py_ssize_t)~s->to * STRIP,
                                     operand(s->a, numbers, strips, first, count),
                                     operand(s->b, numbers, strips, second, count)))
                return 1;
        }
        memcpy(out + at, operand(p->result, numbers, strips, first, count), count * sizeof(double));
    }
    return 0;
}

/* The places of a program may be any, if they are within its numbers and columns. */
static int is_sound(const Program *p, Py_ssize_t nbytes, int columns)
{
    if (nbytes < (Py_ssize_t)sizeof(Program) || p->steps < 0 || nbytes != (Py_ssize_t)(sizeof(Program) + p->steps * sizeof(Step)))
        return 0;
#define WITHIN(place) ((place) >= 0 ? (place) < p->numbers : ~(place) < columns)
    for (int i = 0; i < p->steps; i++) {
        const Step *s = &p->step[i];
        if (s->operation < ADD || s->operation > NOT_EQUAL || !WITHIN(s->to) || !WITHIN(s->a) || !WITHIN(s->b) || (s->to >= 0 && (s->a < 0 || s->b < 0)))
            return 0;
    }
    return WITHIN(p->result) && p->given >= 0 && p->given <= p->numbers && p->rows >= 0 && p->columns >= 0;
}

#define MOST_COLUMNS 8

/* evaluate(program, all columns, numbers, values, table, index, columns, out): see Staged.finish. `numbers` begin with those
   that the table was prepared with, behind which the tuple `values` is put. */
PyObject *evaluate(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    Py_buffer views[5 + MOST_COLUMNS];
    int held = 0, many = 0;
    PyObject *result = NULL;
    double *memory = NULL;
    if (nargs != 8 || !PyTuple_Check(args[3]) || !PyTuple_Check(args[6]))
        return PyErr_Format(PyExc_TypeError, "evaluate takes eight arguments");
    const Py_ssize_t values = PyTuple_Size(args[3]), columns = PyTuple_Size(args[6]);
    const int all = (int)PyLong_AsLong(args[1]);
    PyObject *const given[] = {args[0], args[2], args[4], args[5], args[7]};
    if (PyErr_Occurred() || columns > MOST_COLUMNS)
        goto wrong;
    for (int i = 0; i < 5; i++, held++)
        if (PyObject_GetBuffer(given[i], &views[held], i == 4 ? PyBUF_CONTIG : PyBUF_CONTIG_RO) < 0)
            goto end;
    const double *given_columns[MOST_COLUMNS];
    const Program *p = views[0].buf;
    const Py_ssize_t size = views[4].len / (Py_ssize_t)sizeof(double);
    const int64_t *index = views[3].len ? views[3].buf : NULL;
    for (; many < columns; many++, held++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(args[6], many), &views[held], PyBUF_CONTIG_RO) < 0)
            goto end;
        given_columns[many] = views[held].buf;
        if (views[held].len != views[4].len)
            goto wrong;
    }
    if (!is_sound(p, views[0].len, all) || p->columns != columns || p->rows + p->columns > all)
        goto wrong;
    const Py_ssize_t prepared = views[1].len / (Py_ssize_t)sizeof(double);
    const Py_ssize_t width = p->rows ? views[2].len / (Py_ssize_t)sizeof(double) / p->rows : 0;
    if (prepared + values != p->given || (index != NULL ? views[3].len / 8 != size : p->rows && width != size))
        goto wrong;
    for (Py_ssize_t i = 0; index != NULL && i < size; i++)
        if (index[i] < 0 || (p->rows && index[i] >= width))
            goto wrong;
    memory = malloc(((size_t)p->numbers + (size_t)all * STRIP) * sizeof(double));
    if (memory == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    memcpy(memory, views[1].buf, views[1].len);
    for (Py_ssize_t i = 0; i < values; i++)
        memory[prepared + i] = PyFloat_AsDouble(PyTuple_GetItem(args[3], i));
    if (PyErr_Occurred())
        goto end;
    if (run(p, memory, memory + p->numbers, views[2].buf, width, index, given_columns, views[4].buf, size))
        PyErr_SetString(PyExc_ZeroDivisionError, "division by zero");
    else
        result = Py_NewRef(Py_None);
    goto end;
wrong:
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the program and its values do not fit each other");
end:
    while (held > 0)
        PyBuffer_Release(&views[--held]);
    free(memory);
    return result;
}
