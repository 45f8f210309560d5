/* The module tilewright._native: functions that Python calls, with the short ways of products. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include "loops.h"

static PyMethodDef functions[] = {{NULL, NULL, 0, NULL}};

static int begin(PyObject *module)
{
    import_array1(-1);
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
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = 0, .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
