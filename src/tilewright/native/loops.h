/* Adds the functions that replace NumPy's inner loops to the module. Returns -1 with Python's exception set. */
int add_loops(PyObject *module);
