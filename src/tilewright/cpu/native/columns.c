/* Programs over columns of float64, which predict the times of all sets of parameters of a kernel (gpu/planning/columns.py), and
   the search for the fastest way to compute a product (gpu/planning/ways.py). Columns are computed a strip at a time, which
   stays in the first caches. */
#include "native.h"
#include <fenv.h>
#include <math.h>
#include <stdlib.h>

/* The numbers of a strip: a constant, so that compilers make vector instructions of the loops over it. */
#define STRIP 32

/* Each operation on x and y, in the order of OPERATIONS in gpu/planning/columns.py. */
#define OPERATIONS(OF) \
    OF(ADD, x + y) OF(SUB, x - y) OF(MUL, x * y) OF(DIV, x / y) OF(FLOOR_DIV, rounded_down(x / y)) \
    OF(MOD, remainder_of(x, y)) OF(CEIL_DIV, rounded_up(x / y)) OF(MIN, smaller(x, y)) OF(MAX, larger(x, y)) \
    OF(SQRT, sqrt(x)) OF(NEGATE, -x) OF(LESS, x < y) OF(LESS_EQUAL, x <= y) OF(GREATER, x > y) \
    OF(GREATER_EQUAL, x >= y) OF(EQUAL, x == y) OF(NOT_EQUAL, x != y)
#define NUMBERED(name, value) name,
enum { OPERATIONS(NUMBERED) };

/* Values are numbered: those that are given, then one for each step. Of each this says where it is: a number i as i, a
   column i as ~i, of which the first `rows` are rows of the table and the next ones those of the call. */
typedef struct { int32_t operation, to, a, b; } Step;
typedef struct { int32_t numbers, given, rows, columns, steps, result; Step step[]; } Program;

/* floor(x), of which compilers make vector instructions on every processor: beyond 2^52 all numbers are whole, and below it
   adding 2^52 rounds to whole numbers. */
static inline double rounded_down(double x)
{
    const double whole = 4503599627370496.0, size = x < 0 ? -x : x, rounded = size + whole - whole;
    const double near = x < 0 ? -rounded : rounded, down = near - (near > x);
    return size < whole ? down : x;
}

static inline double rounded_up(double x)
{
    return -rounded_down(-x);
}

static inline double smaller(double x, double y)
{
    return x < y ? x : y;
}

static inline double larger(double x, double y)
{
    return x > y ? x : y;
}

static double remainder_of(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* One step of numbers. */
static double compute(int operation, double x, double y)
{
    switch (operation) {
#define OF_NUMBERS(name, value) case name: return (value);
        OPERATIONS(OF_NUMBERS)
    }
    return 0;
}

/* One step of a strip, of two strips or of a strip and a number: without jumps, which are slow to predict. */
#define EACH_OF_STRIP _Pragma("GCC unroll 32") for (int i = 0; i < STRIP; i++)
static void compute_strip(int operation, double *restrict to, const double *restrict a, const double *restrict b,
                          int a_is_number, int b_is_number)
{
    switch (operation) {
#define OF_STRIPS(name, value) \
    case name: \
        if (b_is_number) { \
            const double y = *b; \
            (void)y; \
            EACH_OF_STRIP { const double x = a[i]; to[i] = (value); } \
        } else if (a_is_number) { \
            const double x = *a; \
            EACH_OF_STRIP { const double y = b[i]; (void)y; to[i] = (value); } \
        } else \
            EACH_OF_STRIP { const double x = a[i], y = b[i]; (void)y; to[i] = (value); } \
        break;
        OPERATIONS(OF_STRIPS)
    }
}

/* A program with the values that it was prepared with, and memory for the others. */
typedef struct {
    const Program *program;
    const double *table;
    Py_ssize_t width;
    double *numbers, *strips;
} Prepared;

/* The steps that compute numbers. */
static void compute_numbers(const Prepared *x)
{
    for (int i = 0; i < x->program->steps; i++) {
        const Step *s = &x->program->step[i];
        if (s->to >= 0)
            x->numbers[s->to] = compute(s->operation, x->numbers[s->a], x->numbers[s->b]);
    }
}

/* The first `count` results, for the sets with the numbers `index`, or from `first` on if that is NULL, and with these
   columns of the call. The rest of a strip repeats its last numbers. */
static void compute_columns(const Prepared *x, Py_ssize_t first, const int64_t *index, const double *const *columns,
                            int count, double *out)
{
    const Program *p = x->program;
    Py_ssize_t at[STRIP];
    for (int i = 0; i < STRIP; i++) {
        const int number = i < count ? i : count - 1;
        at[i] = index == NULL ? first + number : index[number];
    }
    for (int r = 0; r < p->rows; r++) {
        const double *row = x->table + r * x->width;
        double *to = x->strips + r * STRIP;
        for (int i = 0; i < STRIP; i += 4)
            to[i] = row[at[i]], to[i + 1] = row[at[i + 1]], to[i + 2] = row[at[i + 2]], to[i + 3] = row[at[i + 3]];
    }
    for (int c = 0; c < p->columns; c++) {
        double *to = x->strips + (p->rows + c) * STRIP;
        memcpy(to, columns[c], count * sizeof(double));
        for (int i = count; i < STRIP; i++)
            to[i] = to[count - 1];
    }
#define AT(place) ((place) < 0 ? x->strips + (Py_ssize_t)~(place) * STRIP : x->numbers + (place))
    for (int i = 0; i < p->steps; i++) {
        const Step *s = &p->step[i];
        if (s->to < 0)
            compute_strip(s->operation, AT(s->to), AT(s->a), AT(s->b), s->a >= 0, s->b >= 0);
    }
    const double *result = AT(p->result);
    for (int i = 0; i < count; i++)
        out[i] = result[p->result < 0 ? i : 0];
}

/* Whether a step since feclearexcept() divided by zero. */
static int has_divided_by_zero(void)
{
    return fetestexcept(FE_DIVBYZERO | FE_INVALID) != 0;
}

/* The places of a program may be any, if they are within its numbers and columns. */
static int is_sound(const Program *p, Py_ssize_t nbytes, int columns)
{
    if (nbytes < (Py_ssize_t)sizeof(Program) || p->steps < 0 ||
        nbytes != (Py_ssize_t)(sizeof(Program) + p->steps * sizeof(Step)))
        return 0;
#define WITHIN(place) ((place) >= 0 ? (place) < p->numbers : ~(place) < columns)
    for (int i = 0; i < p->steps; i++) {
        const Step *s = &p->step[i];
        if (s->operation < ADD || s->operation > NOT_EQUAL || !WITHIN(s->to) || !WITHIN(s->a) || !WITHIN(s->b) ||
            (s->to >= 0 && (s->a < 0 || s->b < 0)))
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
    const Prepared prepared_program = {p, views[2].buf, width, memory, memory + p->numbers};
    feclearexcept(FE_ALL_EXCEPT);
    compute_numbers(&prepared_program);
    for (Py_ssize_t at = 0; at < size; at += STRIP) {
        const int count = (int)(size - at < STRIP ? size - at : STRIP);
        const int64_t *some = index == NULL ? NULL : index + at;
        compute_columns(&prepared_program, at, some, given_columns, count, (double *)views[4].buf + at);
        for (int i = 0; i < columns; i++)
            given_columns[i] += count;
    }
    if (has_divided_by_zero())
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

/* ---- the fastest way ---------------------------------------------------------------------------------------------- */

/* What a call gives, in the order of GIVEN in gpu/planning/ways.py, and behind it whether all lines begin at whole ones; and the
   columns of ways, in the order of COLUMNS there. */
enum { M, N, K, BATCH, A_START, B_START, A_VECTOR, B_VECTOR, STORED, SUM_SIZE, C_IS_DOWN, VECTORS, COPIED, LINES, VALUES };
enum { BLOCKS, PARTS, PART, OUT_SIZE, C_DOWN, SECONDS, COLUMNS };
/* The programs before those of conditions. */
enum { BLOCKS_OF, SHARED_OF, SECONDS_OF, TOTAL_OF, CONDITIONS };
/* The most parts of k that a set is tried with: 1, four that fill the GPU, and seven with fewer generations. */
enum { MOST_TRIED = 12 };
#define WHOLE_LINE 128

/* A program of some sets, and which values and columns of the call it takes. */
typedef struct {
    Prepared x;
    Py_ssize_t first, end, prepared, values;
    int32_t takes[VALUES], columns[COLUMNS];
} Part;

/* The sets of a kernel for one layout. `usable`, `at_once` and `step` have a number for each; `index` and `blocks` are
   memory for those that a shape may take. */
typedef struct {
    Py_ssize_t sets, programs;
    double sms, is_persistent, is_cut, least_steps, most_parts, most_shared;
    double *usable, *at_once, *step, *blocks;
    int64_t *index;
    Part part[];
} KernelSets;

/* Ways that are not timed yet, and the fastest of the others. */
typedef struct {
    int count;
    int64_t index[STRIP], number;
    double column[COLUMNS][STRIP], least, parts;
} Search;

static void begin_part(const Part *part, const double *values)
{
    for (Py_ssize_t i = 0; i < part->values; i++)
        part->x.numbers[part->prepared + i] = values[part->takes[i]];
    compute_numbers(&part->x);
}

/* The times of the ways of a search. */
static void time_ways(const KernelSets *r, Search *s)
{
    double total[STRIP];
    for (int program = SECONDS_OF; program <= TOTAL_OF && s->count; program++) {
        const Part *part = &r->part[program];
        const double *columns[COLUMNS];
        for (int i = 0; i < part->x.program->columns; i++)
            columns[i] = s->column[part->columns[i]];
        compute_columns(&part->x, 0, s->index, columns, s->count, program == TOTAL_OF ? total : s->column[SECONDS]);
    }
    for (int i = 0; i < s->count; i++)
        if (s->number < 0 || total[i] < s->least)
            s->least = total[i], s->number = s->index[i], s->parts = s->column[PARTS][i];
    s->count = 0;
}

/* The numbers of parts of k that a set is tried with, from 1 on: `_parts` in gpu/planning/ways.py. Returns how many. */
static int tried_parts(const KernelSets *r, int64_t set, double blocks, double k, double *parts)
{
    int count = 1, few = 0;
    parts[0] = 1;
    if (!r->is_cut)
        return 1;
    const double steps = rounded_up(k / r->step[set]), most = smaller(rounded_down(steps / r->least_steps), r->most_parts);
    if (most < 2)
        return 1;
    const double fill = rounded_down(r->at_once[set] / larger(1, blocks));
    double wanted[MOST_TRIED] = {rounded_down(fill / 2), fill, 2 * fill, 4 * fill}, least = rounded_up(blocks / r->sms);
    if (!r->is_persistent && blocks < 0.951 * r->sms * least) /* _fewer_generations */
        for (int many = 2; many < 9; many++) {
            const double generations = rounded_up(blocks * many / r->sms);
            if (generations < 0.95 * least * many)
                least = generations / many, wanted[4 + few++] = many;
        }
    for (int i = 0; i < 4 + few; i++) {
        if (wanted[i] < 2)
            continue; /* which is 1 */
        const double value = rounded_up(steps / rounded_up(steps / smaller(wanted[i], most)));
        int at = count;
        while (at > 0 && parts[at - 1] > value)
            at--;
        if (at > 0 && parts[at - 1] == value)
            continue;
        memmove(parts + at + 1, parts + at, (count++ - at) * sizeof *parts);
        parts[at] = value;
    }
    return count;
}

/* The sets that a shape may take, in r->index. Returns how many. */
static Py_ssize_t find_allowed(const KernelSets *r, const double *values)
{
    double found[STRIP];
    Py_ssize_t count = 0;
    memcpy(r->blocks, r->usable, r->sets * sizeof(double));
    for (Py_ssize_t i = CONDITIONS; i < r->programs; i++) {
        const Part *part = &r->part[i];
        begin_part(part, values);
        for (Py_ssize_t at = part->first; at < part->end; at += STRIP) {
            const int some = (int)(part->end - at < STRIP ? part->end - at : STRIP);
            compute_columns(&part->x, at - part->first, NULL, NULL, some, found);
            for (int j = 0; j < some; j++)
                if (found[j] == 0)
                    r->blocks[at + j] = 0;
        }
    }
    for (Py_ssize_t i = 0; i < r->sets; i++)
        if (r->blocks[i] != 0)
            r->index[count++] = i;
    if (values[VECTORS] < 0)
        return count;
    const Part *shared = &r->part[SHARED_OF]; /* with an epilogue */
    Py_ssize_t kept = 0;
    begin_part(shared, values);
    for (Py_ssize_t at = 0; at < count; at += STRIP) {
        const int some = (int)(count - at < STRIP ? count - at : STRIP);
        compute_columns(&shared->x, 0, r->index + at, NULL, some, found);
        for (int j = 0; j < some; j++)
            if (found[j] <= r->most_shared)
                r->index[kept++] = r->index[at + j];
    }
    return kept;
}

/* All ways that a shape may take. */
static void search(const KernelSets *r, const double *values, Search *s)
{
    const double k = values[K];
    const Py_ssize_t count = find_allowed(r, values);
    for (int program = BLOCKS_OF; program <= TOTAL_OF; program++)
        if (program != SHARED_OF)
            begin_part(&r->part[program], values);
    for (Py_ssize_t at = 0; at < count; at += STRIP) {
        const int some = (int)(count - at < STRIP ? count - at : STRIP);
        compute_columns(&r->part[BLOCKS_OF].x, 0, r->index + at, NULL, some, r->blocks + at);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        double parts[MOST_TRIED];
        const double blocks = r->blocks[i] * values[BATCH], step = r->step[r->index[i]];
        const int many = tried_parts(r, r->index[i], blocks, k, parts);
        for (int j = 0; j < many; j++) {
            const int is_whole = parts[j] == 1, to = s->count++;
            s->index[to] = r->index[i];
            s->column[BLOCKS][to] = blocks * parts[j];
            s->column[PARTS][to] = parts[j];
            s->column[PART][to] = is_whole ? k : rounded_up(rounded_up(k / step) / parts[j]) * step;
            s->column[OUT_SIZE][to] = is_whole ? values[STORED] : values[SUM_SIZE];
            s->column[C_DOWN][to] = is_whole * values[C_IS_DOWN];
            if (s->count == STRIP)
                time_ways(r, s);
        }
    }
    time_ways(r, s);
}

#define WAY_SEARCH "tilewright way search"

/* The function that ``way_search`` makes. Scratch memory is shared by all calls, which hold the GIL. */
static PyObject *fastest(PyObject *capsule, PyObject *const *args, Py_ssize_t nargs)
{
    const KernelSets *r = PyCapsule_GetPointer(capsule, WAY_SEARCH);
    double values[VALUES];
    Search s = {.number = -1};
    if (r == NULL)
        return NULL;
    if (nargs != LINES)
        return PyErr_Format(PyExc_TypeError, "a way search takes %d numbers", LINES);
    for (int i = 0; i < LINES; i++)
        values[i] = PyFloat_AsDouble(args[i]);
    if (PyErr_Occurred())
        return NULL;
    values[LINES] = values[A_START] == WHOLE_LINE && values[B_START] == WHOLE_LINE;
    feclearexcept(FE_ALL_EXCEPT);
    search(r, values, &s);
    if (has_divided_by_zero()) {
        PyErr_SetString(PyExc_ZeroDivisionError, "division by zero");
        return NULL;
    }
    if (s.number < 0)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(dnn)", s.least, (Py_ssize_t)s.number, (Py_ssize_t)s.parts);
}

static PyMethodDef fastest_method = {"fastest", (PyCFunction)fastest, METH_FASTCALL, NULL};

static void free_sets(PyObject *capsule)
{
    KernelSets *r = PyCapsule_GetPointer(capsule, WAY_SEARCH);
    for (Py_ssize_t i = 0; i < r->programs; i++)
        free((void *)r->part[i].x.program), free(r->part[i].x.numbers);
    free(r->usable);
    free(r->index);
    free(r);
}

/* Reads (program, all columns, numbers, table, values, columns, first, end) into a part. Returns -1 with an exception. */
static int read_part(Part *part, PyObject *given, Py_ssize_t sets)
{
    PyObject *code, *numbers, *table, *values, *columns;
    int all;
    if (!PyArg_ParseTuple(given, "SiOOSSnn", &code, &all, &numbers, &table, &values, &columns, &part->first, &part->end))
        return -1;
    Py_buffer of_numbers, of_table;
    if (PyObject_GetBuffer(numbers, &of_numbers, PyBUF_CONTIG_RO) < 0)
        return -1;
    if (PyObject_GetBuffer(table, &of_table, PyBUF_CONTIG_RO) < 0) {
        PyBuffer_Release(&of_numbers);
        return -1;
    }
    const Py_ssize_t nbytes = PyBytes_Size(code), taken = PyBytes_Size(columns) / (Py_ssize_t)sizeof(int32_t);
    const Program *p = (const Program *)PyBytes_AsString(code);
    part->values = PyBytes_Size(values) / (Py_ssize_t)sizeof(int32_t);
    part->prepared = of_numbers.len / (Py_ssize_t)sizeof(double);
    part->x.width = part->end - part->first;
    int is_right = is_sound(p, nbytes, all) && p->columns == taken && p->rows + taken <= all &&
                   part->prepared + part->values == p->given && part->values <= VALUES && taken <= COLUMNS &&
                   part->first >= 0 && part->x.width >= 0 && part->end <= sets &&
                   of_table.len == (Py_ssize_t)sizeof(double) * p->rows * part->x.width;
    if (is_right) {
        memcpy(part->takes, PyBytes_AsString(values), part->values * sizeof(int32_t));
        memcpy(part->columns, PyBytes_AsString(columns), taken * sizeof(int32_t));
    }
    for (Py_ssize_t i = 0; is_right && i < part->values; i++)
        is_right = part->takes[i] >= 0 && part->takes[i] < VALUES;
    for (Py_ssize_t i = 0; is_right && i < taken; i++)
        is_right = part->columns[i] >= 0 && part->columns[i] < COLUMNS;
    const size_t needed = ((size_t)(is_right ? p->numbers : 0) + (size_t)(is_right ? all : 0) * STRIP) * sizeof(double);
    void *copied = is_right ? malloc(nbytes) : NULL;
    double *memory = is_right ? malloc(needed + of_table.len + sizeof(double)) : NULL;
    part->x.program = copied;
    part->x.numbers = memory;
    if (copied != NULL && memory != NULL) {
        memcpy(copied, p, nbytes);
        memcpy(memory, of_numbers.buf, of_numbers.len);
        part->x.strips = memory + p->numbers;
        memcpy((char *)memory + needed, of_table.buf, of_table.len);
        part->x.table = (double *)((char *)memory + needed);
    } else if (is_right)
        PyErr_NoMemory();
    else
        PyErr_SetString(PyExc_ValueError, "the program and its values do not fit each other");
    PyBuffer_Release(&of_table);
    PyBuffer_Release(&of_numbers);
    return copied != NULL && memory != NULL ? 0 : -1;
}

/* way_search(sets, facts, programs): a function that finds the fastest way; see ``_search`` in gpu/planning/ways.py. */
PyObject *way_search(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *sets, *programs;
    double sms, is_persistent, is_cut, least_steps, most_parts, most_shared;
    if (!PyArg_ParseTuple(args, "S(dddddd)O!", &sets, &sms, &is_persistent, &is_cut, &least_steps, &most_parts, &most_shared,
                          &PyTuple_Type, &programs))
        return NULL;
    const Py_ssize_t count = PyBytes_Size(sets) / (3 * (Py_ssize_t)sizeof(double)), many = PyTuple_Size(programs);
    if (many < CONDITIONS)
        return PyErr_Format(PyExc_ValueError, "a way search needs %d programs", CONDITIONS);
    KernelSets *r = calloc(1, sizeof(KernelSets) + many * sizeof(Part));
    if (r == NULL)
        return PyErr_NoMemory();
    r->sets = count;
    r->programs = many;
    r->sms = sms, r->is_persistent = is_persistent, r->is_cut = is_cut;
    r->least_steps = least_steps, r->most_parts = most_parts, r->most_shared = most_shared;
    r->usable = malloc((4 * count + 1) * sizeof(double));
    r->index = malloc((count + 1) * sizeof(int64_t));
    PyObject *capsule = PyCapsule_New(r, WAY_SEARCH, free_sets), *found = NULL;
    if (capsule == NULL) {
        free(r->usable);
        free(r->index);
        free(r);
        return NULL;
    }
    if (r->usable == NULL || r->index == NULL)
        PyErr_NoMemory();
    else {
        memcpy(r->usable, PyBytes_AsString(sets), 3 * count * sizeof(double));
        r->at_once = r->usable + count, r->step = r->at_once + count, r->blocks = r->step + count;
        Py_ssize_t i = 0;
        for (; i < many && read_part(&r->part[i], PyTuple_GetItem(programs, i), count) == 0; i++) {
            const Part *part = &r->part[i];
            const int has_columns = i == SECONDS_OF || i == TOTAL_OF, is_of_all = part->x.width == count;
            if ((part->x.program->columns && !has_columns) || (i < CONDITIONS && !is_of_all)) {
                PyErr_SetString(PyExc_ValueError, "the program and its values do not fit each other");
                break;
            }
        }
        if (i == many)
            found = PyCFunction_NewEx(&fastest_method, capsule, NULL);
    }
    Py_DECREF(capsule);
    return found;
}
