/* What machine code of Numba expects of its process: memory that it counts references to, and the strides of a reshaped
   array. Numba's own runtime needs Python's headers; a built library needs this file alone. And functions for Python. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* The fields that generated code reads, in their order: it counts references in the first one, atomically. */
typedef struct {
    size_t references;
    void *destructor, *of_destructor, *data;
    size_t size;
    void *allocator;
} Memory;

/* Memory with one reference; NULL where there is none. */
Memory *NRT_MemInfo_alloc_aligned(size_t size, unsigned align) {
    Memory *memory = malloc(sizeof(Memory) + size + align);
    if (memory == NULL)
        return NULL;
    uintptr_t first = (uintptr_t)(memory + 1);
    *memory = (Memory){1, NULL, NULL, (void *)((first + align - 1) / align * align), size, NULL};
    return memory;
}

/* Called when the last reference is gone. */
void NRT_MemInfo_call_dtor(Memory *memory) { free(memory); }

/* The strides of a contiguous array under another shape, in the order of C; 0 where it is not contiguous, or the other order
   is asked for. */
int numba_attempt_nocopy_reshape(intptr_t axes, const intptr_t *shape, const intptr_t *strides, intptr_t new_axes,
                                 const intptr_t *new_shape, intptr_t *new_strides, intptr_t itemsize, int by_columns) {
    intptr_t expected = itemsize;
    for (intptr_t axis = axes - 1; axis >= 0; axis--) {
        if (shape[axis] != 1 && strides[axis] != expected)
            return 0;
        expected *= shape[axis];
    }
    if (by_columns)
        return 0;
    expected = itemsize;
    for (intptr_t axis = new_axes - 1; axis >= 0; axis--) {
        new_strides[axis] = expected;
        expected *= new_shape[axis];
    }
    return 1;
}

/* Python's stable interface, of any version from 3.11 on. */
typedef struct Object Object;
extern Object *PyObject_CallNoArgs(Object *);
extern void Py_DecRef(Object *), PyErr_Clear(void);
extern void PyErr_Fetch(Object **, Object **, Object **), PyErr_Restore(Object *, Object *, Object *);

/* The result of body(), after cleanup() has run to its end; see cpu/runtime/interrupts.py. */
Object *ensured(Object *body, Object *cleanup) {
    Object *type, *value, *trace, *settled, *result = PyObject_CallNoArgs(body);
    PyErr_Fetch(&type, &value, &trace);
    while ((settled = PyObject_CallNoArgs(cleanup)) == NULL) {
        if (type == NULL)
            PyErr_Fetch(&type, &value, &trace);
        else
            PyErr_Clear();
    }
    Py_DecRef(settled);
    if (type == NULL)
        return result;
    Py_DecRef(result);
    PyErr_Restore(type, value, trace);
    return NULL;
}

/* Move rows of a file to memory, or from it, with one call for each; how many were moved before a call failed or fell short. */
#define MOVE_ROWS(name, call)                                                                                          \
    int64_t name(int64_t file, int64_t address, int64_t stride, int64_t bytes, int64_t offset, int64_t pitch,          \
                 int64_t rows) {                                                                                       \
        for (int64_t row = 0; row < rows; row++)                                                                       \
            if (call((int)file, (void *)(address + row * stride), (size_t)bytes, (off_t)(offset + row * pitch)) != bytes) \
                return row;                                                                                            \
        return rows;                                                                                                   \
    }
MOVE_ROWS(pread_rows, pread)
MOVE_ROWS(pwrite_rows, pwrite)
