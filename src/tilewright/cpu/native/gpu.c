/* Short ways of products on GPUs: recorded launches are repeated, and tensors are read by DLPack's exchange interface. */
#include "native.h"

/* The most bytes of a launch's arguments, arguments of a launch, operands, and axes of a tensor that is read. Addresses and
   strides of whole granules of so many bytes can be moved by a GPU's copy engine. */
enum { MOST_BYTES = 4096, MOST_ARGUMENTS = 64, MOST_OPERANDS = 8, MOST_AXES = 8, GRANULE = 16 };

/* ---- recorded launches ------------------------------------------------------------------------------------------- */

/* From the header of CUDA's driver, version 12. */
typedef struct {
    unsigned sizes[7]; /* of the grid, of a block, and of shared memory */
    void *stream, *attributes;
    unsigned attribute_count;
} LaunchConfig;
typedef struct {
    void *function;
    unsigned sizes[7];
    void **arguments, **extra, *kernel, *context;
} KernelNode;

/* The words that ``graph.LaunchGraph`` writes, with the driver's functions. `lock`: whether a thread uses the graph.
   `stream`: the one that it serves, or -1 after an error. */
typedef struct {
    _Atomic int64_t lock;
    void *stream, *graph;
    int (*is_capturing)(void *stream, int *captured);
    int (*set_arguments)(void *graph, void *node, const KernelNode *values);
    int (*launch)(void *graph, void *stream);
    void *nodes[];
} Graph;

/* The words that ``recording.Replay`` writes: a program, then its launches. */
typedef struct {
    int (*get_current)(void **context);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*launch)(const LaunchConfig *config, void *function, void **arguments, void **extra);
    void *context;
    int64_t operands, launches;
    Graph *graph;
} Program;
/* Behind it: where each argument begins, so many bytes of arguments, and the addresses. */
typedef struct { void *function; unsigned sizes[7], waits; int64_t arguments, addresses, bytes; } Launch;
typedef struct { int64_t at, operand, offset; } Address;

/* The arguments of one launch. */
typedef struct { _Alignas(64) char bytes[MOST_BYTES]; void *places[MOST_ARGUMENTS]; } Arguments;

/* Read a launch, with these addresses in its arguments; returns what follows it in the program. */
static const char *read_launch(const Launch *launch, const uint64_t *given, Arguments *to, unsigned *sizes)
{
    const int64_t *places = (const int64_t *)(launch + 1);
    const char *bytes = (const char *)(places + launch->arguments);
    const Address *addresses = (const Address *)(bytes + launch->bytes);
    memcpy(sizes, launch->sizes, sizeof launch->sizes);
    for (int64_t i = 0; i < launch->arguments; i++)
        to->places[i] = to->bytes + places[i];
    memcpy(to->bytes, bytes, launch->bytes);
    for (int64_t i = 0; i < launch->addresses; i++) {
        uint64_t value = given[addresses[i].operand] + (uint64_t)addresses[i].offset;
        memcpy(to->bytes + addresses[i].at, &value, sizeof value);
    }
    return (const char *)(addresses + launch->addresses);
}

/* Make the launches or, with a graph, change the arguments of its nodes: work that was submitted before keeps its own.
   Returns the status, and the number of the last launch. */
static int submit(const Program *program, const uint64_t *given, void *stream, Graph *graph, int64_t *number)
{
    /* PROGRAMMATIC_STREAM_SERIALIZATION: a kernel that waits for the launch before it may begin before the end of that. */
    _Alignas(8) int attribute[18] = {6, 0, 1};
    LaunchConfig config = {.stream = stream, .attributes = attribute};
    KernelNode node = {0};
    Arguments arguments; /* on the stack: several threads may launch at once */
    const char *at = (const char *)(program + 1);
    int status = 0;
    for (int64_t i = 0; i < program->launches && status == 0; i++) {
        const Launch *launch = (const Launch *)at;
        at = read_launch(launch, given, &arguments, graph ? node.sizes : config.sizes);
        config.attribute_count = launch->waits != 0;
        node.kernel = launch->function, node.arguments = arguments.places;
        status = graph ? graph->set_arguments(graph->graph, graph->nodes[i], &node)
                       : program->launch(&config, launch->function, arguments.places, NULL);
        *number = i;
    }
    return status;
}

/* Whether the launches were submitted as a graph: it must be free and serve this stream, which must not be captured. */
static int by_graph(const Program *program, const uint64_t *given, void *stream)
{
    Graph *graph = program->graph;
    int done = 0, captured = 0;
    int64_t number;
    if (graph == NULL || atomic_exchange_explicit(&graph->lock, 1, memory_order_acquire))
        return 0;
    if (graph->stream == stream && graph->is_capturing(stream, &captured) == 0 && !captured) {
        done = submit(program, given, stream, graph, &number) == 0 && graph->launch(graph->graph, stream) == 0;
        if (!done)
            graph->stream = (void *)-1;
    }
    atomic_store_explicit(&graph->lock, 0, memory_order_release);
    return done;
}

/* Make the launches; returns 0, or the number of the launch that failed << 32 and its status. The number is that of all
   launches if the context could not be made current. */
static int64_t make_launches(const Program *program, const uint64_t *given, void *stream)
{
    PyThreadState *thread = PyEval_SaveThread(); /* a launch waits while the stream's queue is full */
    void *current = NULL;
    int64_t failed_at = program->launches;
    program->get_current(&current);
    int is_other = current != program->context, status = is_other ? program->push(program->context) : 0;
    int pushed = is_other && status == 0;
    if (status == 0 && !by_graph(program, given, stream))
        status = submit(program, given, stream, NULL, &failed_at);
    if (pushed)
        program->pop(&current);
    PyEval_RestoreThread(thread);
    return status ? failed_at << 32 | (unsigned)status : 0;
}

/* run(*addresses, stream) of a program. */
static PyObject *run(PyObject *bound, PyObject *const *args, Py_ssize_t count)
{
    const Program *program = (const Program *)PyBytes_AsString(bound);
    uint64_t given[MOST_OPERANDS + 2] = {0};
    if (count != program->operands + 1)
        return PyErr_Format(PyExc_TypeError, "%lld addresses and a stream are needed", (long long)program->operands);
    for (Py_ssize_t i = 0; i < count; i++)
        if ((given[i] = PyLong_AsUnsignedLongLong(args[i])) == UINT64_MAX && PyErr_Occurred())
            return NULL;
    void *stream = (void *)given[program->operands];
    given[program->operands] = 0; /* numbers that are no addresses are added to it */
    return PyLong_FromLongLong(make_launches(program, given, stream));
}

PyObject *replay(PyObject *module, PyObject *program)
{
    static PyMethodDef definition = {"run", (PyCFunction)run, METH_FASTCALL, NULL};
    (void)module;
    if (!PyBytes_Check(program) || ((const Program *)PyBytes_AsString(program))->operands > MOST_OPERANDS)
        return PyErr_Format(PyExc_ValueError, "no program, or one of more than %d operands", MOST_OPERANDS);
    return PyCFunction_NewEx(&definition, program, NULL);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* From the standard of DLPack, version 1. */
typedef struct { int32_t device_type, device_id, axes; uint8_t dtype, bits; uint16_t lanes; } Kind;
typedef struct {
    void *data;
    Kind kind;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;
typedef struct {
    uint32_t major, minor;
    void *previous, *allocate, *managed_from_object, *managed_to_object;
    int (*tensor_from_object)(PyObject *x, Tensor *to);
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} ExchangeInterface;

/* The objects by which a library's tensors are read, in the order of ``repeated._reader``. */
enum {
    FIRST_TYPE, SECOND_TYPE, INTERFACE, GRADIENTS_ARE_RECORDED, STATE, ATTRIBUTE, USUAL, REQUIRES_GRAD, IS_NEG, KNOWN,
    OTHERWISE, FIELDS
};
typedef struct {
    PyObject_HEAD
    PyObject *fields[FIELDS];
    const ExchangeInterface *library;
} Exchange;

/* Public in CPython 3.11, and a part of the stable interface from 3.12 on. */
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
PyAPI_FUNC(PyObject *) PyObject_VectorcallMethod(PyObject *, PyObject *const *, size_t, PyObject *);

/* Read a tensor of one of the library's two types. Returns 0 for others, and for those that are not plain. */
static int read_tensor(const Exchange *self, PyObject *x, Tensor *to)
{
    PyObject *kind = (PyObject *)Py_TYPE(x);
    if (kind != self->fields[FIRST_TYPE] && kind != self->fields[SECOND_TYPE])
        return 0;
    return self->library->tensor_from_object(x, to) == 0 && to->byte_offset == 0 && to->strides != NULL;
}

/* Whether the library's state is as usual, not as while tangents are recorded. */
static int is_usual(const Exchange *self)
{
    PyObject *found = PyObject_GetAttr(self->fields[STATE], self->fields[ATTRIBUTE]);
    Py_XDECREF(found); /* the address is compared alone */
    return found == self->fields[USUAL];
}

/* Whether gradients are recorded now; -1 after an error. */
static int are_recorded(const Exchange *self)
{
    PyObject *answer = PyObject_CallNoArgs(self->fields[GRADIENTS_ARE_RECORDED]);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : answer != Py_False;
}

/* Whether only the long way can judge x: a gradient would be recorded, or its values are stored negated. `recorded`: whether
   gradients are, or -1 to ask where it matters. */
static int is_unusual(const Exchange *self, PyObject *x, int recorded)
{
    if (recorded) {
        PyObject *wanted = PyObject_GetAttr(x, self->fields[REQUIRES_GRAD]);
        Py_XDECREF(wanted);
        if (wanted == NULL || (wanted != Py_False && (recorded > 0 || are_recorded(self))))
            return 1;
    }
    PyObject *negated = PyObject_VectorcallMethod(self->fields[IS_NEG], &x, 1, NULL);
    Py_XDECREF(negated);
    return negated != Py_False;
}

/* The key of two tensors that are read: bytes of all that their launches depend on. NULL where they are not plain. */
static PyObject *key_of(const Exchange *self, PyObject *const *args, Tensor *tensors)
{
    int64_t words[5 + 4 * MOST_AXES], *to = words + 1;
    words[0] = 0;
    for (int i = 0; i < 2; i++) {
        Tensor *x = &tensors[i]; /* its address is NULL if it is empty, or inside a transformation */
        if (!read_tensor(self, args[i], x) || x->kind.axes > MOST_AXES || x->data == NULL)
            return NULL;
        words[0] = words[0] << 8 | (int64_t)((uintptr_t)x->data % GRANULE);
        memcpy(to, &x->kind, sizeof x->kind);
        to += 2;
        for (int axis = 0; axis < x->kind.axes; axis++)
            *to++ = x->shape[axis], *to++ = x->strides[axis];
    }
    words[0] |= (int64_t)(tensors[0].data == tensors[1].data) << 16; /* the product may be symmetric */
    return PyBytes_FromStringAndSize((const char *)words, (char *)to - (char *)words);
}

/* key(a, b): both addresses and the key; None for tensors that are not plain. */
static PyObject *key(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Tensor tensors[2];
    const Exchange *self = (Exchange *)object;
    PyObject *found = count == 2 ? key_of(self, args, tensors) : NULL;
    if (found != NULL)
        return Py_BuildValue("KKN", (uint64_t)tensors[0].data, (uint64_t)tensors[1].data, found);
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* product(a, b) or product(a, b, None): the product, computed by the launches that are known for the key. */
static PyObject *product(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Tensor tensors[2], of_c, of_workspace = {0};
    const Exchange *self = (Exchange *)object;
    PyObject *known = NULL, *c = NULL, *workspace = NULL;
    if (count != 2 && (count != 3 || args[2] != Py_None))
        goto declined;
    PyObject *made = key_of(self, args, tensors);
    if (made == NULL)
        goto declined;
    known = PyObject_GetItem(self->fields[KNOWN], made); /* (program, allocate, allocate a workspace, raise) */
    Py_DECREF(made);
    if (known == NULL || !is_usual(self) || is_unusual(self, args[0], -1) || is_unusual(self, args[1], -1))
        goto declined;
    c = PyObject_CallNoArgs(PyTuple_GetItem(known, 1));
    if (c == NULL || !read_tensor(self, c, &of_c))
        goto declined;
    if (PyTuple_GetItem(known, 2) != Py_None) {
        workspace = PyObject_CallNoArgs(PyTuple_GetItem(known, 2));
        if (workspace == NULL || !read_tensor(self, workspace, &of_workspace))
            goto declined;
    }
    void *stream;
    if (self->library->current_stream(tensors[0].kind.device_type, tensors[0].kind.device_id, &stream))
        goto declined;
    uint64_t given[MOST_OPERANDS + 1] = {
        (uint64_t)tensors[0].data, (uint64_t)tensors[1].data, (uint64_t)of_c.data, (uint64_t)of_workspace.data,
    };
    int64_t failed = make_launches((const Program *)PyBytes_AsString(PyTuple_GetItem(known, 0)), given, stream);
    Py_XDECREF(workspace);
    if (failed) {
        Py_DECREF(c);
        c = PyObject_CallFunction(PyTuple_GetItem(known, 3), "L", failed); /* raises */
    }
    Py_DECREF(known);
    return c;

declined:
    PyErr_Clear();
    Py_XDECREF(known);
    Py_XDECREF(c);
    Py_XDECREF(workspace);
    return PyObject_Vectorcall(self->fields[OTHERWISE], args, count, NULL);
}

/* What a key has of each matrix of a list; `place` is that of its first byte within a granule. */
typedef struct { Kind kind; int64_t place, shape[2], strides[2]; } ListedMatrix;

/* read(a, b): the addresses of all matrices of two lists, then what the key has of them, as bytes; None for lists of
   different lengths, and where one matrix is not plain. */
static PyObject *read_lists(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    const Exchange *self = (Exchange *)object;
    PyObject *data = NULL;
    if (count != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1]) || !is_usual(self))
        goto declined;
    Py_ssize_t n = PyList_Size(args[0]);
    int recorded = are_recorded(self);
    if (n == 0 || PyList_Size(args[1]) != n || recorded < 0)
        goto declined;
    data = PyBytes_FromStringAndSize(NULL, 2 * n * (Py_ssize_t)(sizeof(uint64_t) + sizeof(ListedMatrix)));
    if (data == NULL)
        goto declined;
    uint64_t *addresses = (uint64_t *)PyBytes_AsString(data);
    ListedMatrix *matrices = (ListedMatrix *)(addresses + 2 * n);
    for (Py_ssize_t i = 0; i < 2 * n; i++) {
        PyObject *x = PySequence_GetItem(args[i / n], i % n);
        Tensor t;
        int fits = x != NULL && read_tensor(self, x, &t) && t.kind.axes == 2 && !is_unusual(self, x, recorded);
        if (fits) {
            addresses[i] = (uint64_t)t.data;
            matrices[i] = (ListedMatrix){
                t.kind, addresses[i] % GRANULE, {t.shape[0], t.shape[1]}, {t.strides[0], t.strides[1]},
            };
        }
        Py_XDECREF(x);
        if (!fits)
            goto declined;
    }
    return data;

declined:
    PyErr_Clear();
    Py_XDECREF(data);
    Py_RETURN_NONE;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    for (PyObject **field = ((Exchange *)object)->fields, **end = field + FIELDS; field < end; field++)
        Py_VISIT(*field);
    return 0;
}

static int clear(PyObject *object)
{
    for (int i = 0; i < FIELDS; i++)
        Py_CLEAR(((Exchange *)object)->fields[i]);
    return 0;
}

static void deallocate(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    PyObject_GC_Del(object);
    Py_DECREF((PyObject *)type);
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *named)
{
    if (named != NULL || PyTuple_Size(args) != FIELDS)
        return PyErr_Format(PyExc_TypeError, "Exchange takes %d objects", FIELDS);
    const ExchangeInterface *library = PyCapsule_GetPointer(PyTuple_GetItem(args, INTERFACE), "dlpack_exchange_api");
    if (library == NULL)
        return NULL;
    if (library->major != 1 || !library->tensor_from_object || !library->current_stream)
        return PyErr_Format(PyExc_ValueError, "this is not version 1 of DLPack's exchange interface");
    Exchange *made = PyObject_GC_New(Exchange, type);
    if (made == NULL)
        return NULL;
    made->library = library;
    for (int i = 0; i < FIELDS; i++)
        made->fields[i] = Py_NewRef(PyTuple_GetItem(args, i));
    PyObject_GC_Track((PyObject *)made);
    return (PyObject *)made;
}

static PyMethodDef methods[] = {
    {"key", (PyCFunction)key, METH_FASTCALL, NULL},
    {"product", (PyCFunction)product, METH_FASTCALL, NULL},
    {"read", (PyCFunction)read_lists, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, create}, {Py_tp_methods, methods}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_dealloc, deallocate}, {0, NULL},
};
PyType_Spec exchange_type = {"tilewright._native.Exchange", sizeof(Exchange), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
